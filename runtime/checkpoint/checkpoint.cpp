#include "ddp/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "checkpoint/checkpoint_tensors.hpp"
#include "checkpoint/sha256.hpp"
#include "checkpoint/writer.hpp"
#include "core/record.hpp"
#include "core/system/absolute_path.hpp"
#include "core/system/own_process.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "parallel/ddp/model_agreement.hpp"

namespace ddp {
namespace {

constexpr std::size_t kStagedBytes = (4_MiB).value;
constexpr std::chrono::milliseconds kLockTime{5000};

// Calls `action` on every rank. Throws on all of them what went wrong on the first that failed; otherwise
// returns what each rank's returned.
std::vector<std::string> together(CheckpointGroup const& group, std::string const& what,
                                  std::function<std::string()> const& action) {
  auto outcome = group.on_all(what, action);
  if (auto const& failure = outcome.failure) {
    throw Error(failure->code, group.members.size() == 1
                                   ? failure->reason
                                   : text("rank ", failure->rank, ": ", failure->reason));
  }
  return std::move(outcome.results);
}

}  // namespace

class Checkpoint::Impl {
 public:
  Impl(World world, std::filesystem::path const& folder, CheckpointTensors tensors, Options options)
      : world_(std::move(world)), path_(absolute_path(folder)), options_(options), group_(group_of_world()) {
    require(options.keep >= 1, "CheckpointOptions::keep: expected at least 1 checkpoint to stay, found 0");
    require(!path_.empty(), "a checkpoint's folder has no name");
    check_model(tensors);
    auto const parts = together(group_, "/tensors", [&] {
      check_checkpoint_tensors(tensors, world_.device());
      own_ = make_snapshot("rank", std::move(tensors.rank), true);
      tensors_ = std::move(tensors);
      make_snapshots();
      return describe_parts(tensors_.sharded_optimizer);
    });
    check_parts(tensors_.sharded_optimizer, parts);
    if (!world_.is_newcomer()) open_folder();  // others hold it
  }

  ~Impl() {
    bool const unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    if (!writer_ || unwinding || world_.membership() != membership_) return;
    try {
      wait();
    } catch (std::exception const& error) {
      log(LogLevel::error, error.what());
    }
  }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  OwnProcess maker;

  [[nodiscard]] std::string const& newest() const noexcept { return newest_; }

  std::optional<RestoredCheckpoint> restore() {
    if (world_.is_newcomer()) return std::nullopt;
    follow();
    require(!writer_, "Checkpoint::restore: a checkpoint is being written; wait() for it first");
    tidying_.reset();
    // Rank 0 chooses, so that all ranks read the same one.
    std::vector<std::string> refused;
    auto const words = together(group_, "/choice", [&]() -> std::string {
      if (!folder_) return {};
      auto const manifest = folder_->newest_good(refused);
      if (!manifest) return {};
      std::string choice = record(to_json(*manifest));
      for (std::string const& each : refused) append_field(choice, each);
      return choice;
    });
    std::string const& chosen = words.front();
    if (chosen.empty()) return std::nullopt;
    RecordReader choice(chosen);
    std::string json;
    choice >> json;
    refused.clear();
    for (std::string each; choice >> each;) refused.push_back(each);
    CheckpointManifest const manifest = parse_manifest(json);
    std::string const name = to_string(CheckpointName{manifest.number, manifest.position.step});
    auto const* const own = own_->empty() ? nullptr : manifest.find(rank_file(world_.rank().value()));
    together(group_, "/read", [&] {
      read(manifest, name, own);
      return std::string();
    });
    put_back(*model_);
    put_back(*optimizer_);
    if (own != nullptr) own_->give_back(world_.stream());
    world_.stream().synchronize();
    newest_ = name;
    return RestoredCheckpoint{name, manifest.position, manifest.ranks, own != nullptr, std::move(refused)};
  }

  void save(TrainingPosition const& position) {
    if (world_.is_newcomer()) {
      throw Error(ErrorCode::invalid_state,
                  "Checkpoint::save(): the others have not taken this new process in yet: make Replicated "
                  "before, which waits for that");
    }
    wait();
    CheckpointName const name{next_number_, position.step};
    CheckpointTask task{group_, path_, name, position, options_.keep, folder_, {}, {}};
    task.group.name = text(group_.name, "/", name.number);
    auto const add = [&](std::string file, std::shared_ptr<CheckpointSnapshot const> const& snapshot) {
      if (snapshot->empty()) return;
      snapshot->take(world_.stream());
      if (snapshot->divided()) {
        task.divided = {std::move(file), snapshot};
      } else {
        task.files.push_back({std::move(file), snapshot});
      }
    };
    bool const first = world_.rank() == 0;
    if (first) add(kModelFile, model_);
    if (first || optimizer_->divided()) add(kOptimizerFile, optimizer_);
    add(rank_file(world_.rank().value()), own_);
    world_.stream().synchronize();
    ++next_number_;
    writing_ = to_string(name);
    writer_ = std::make_unique<CheckpointWriter>(std::move(task), std::move(tidying_));
  }

  void wait() {
    follow();
    if (!writer_) return;
    // Time for the writing itself, and for the waits for the others.
    int const waits = optimizer_->divided() ? 3 : 2;
    tidying_ = std::exchange(writer_, nullptr);
    tidying_->wait(Deadline::after(Deadline::bounded(group_.timeout) * (1 + waits)));
    newest_ = writing_;
  }

 private:
  [[nodiscard]] CheckpointGroup group_of_world() {
    return {world_.shared_control(),
            {world_.members().begin(), world_.members().end()},
            world_.next_name("checkpoint"),
            options_.timeout.count() > 0 ? options_.timeout : world_.options().timeout};
  }

  template <class... All>
  [[nodiscard]] static std::shared_ptr<CheckpointSnapshot const> make_snapshot(char const* what,
                                                                               All&&... all) {
    return std::make_shared<CheckpointSnapshot const>(what, std::forward<All>(all)...);
  }

  void make_snapshots() {
    is_first_ = world_.rank() == 0;
    model_ = make_snapshot("model", tensors_.model, is_first_);
    optimizer_ = make_snapshot("optimizer", tensors_.optimizer, is_first_, tensors_.sharded_optimizer);
  }

  // After World::rebuild(), once: goes on with the ranks that are left. What they were writing with one that
  // is lost is given up: each rank ends its part before the first one looks into the folder, which it takes
  // from the one that held it, lost or not. Throws, on all ranks alike, if the newest one was not complete.
  void follow() {
    if (world_.membership() == membership_) return;
    if (optimizer_->divided()) {
      throw Error(ErrorCode::unsupported,
                  "a Checkpoint with a sharded optimizer cannot follow its World: make another one");
    }
    if (writer_) given_up_ = writing_;
    writer_.reset();
    tidying_.reset();
    if (world_.rank() != 0) folder_.reset();
    group_ = group_of_world();
    std::string unfinished;
    for (std::string const& said :
         together(group_, "/given_up", [&] { return record(next_number_, given_up_); })) {
      std::uint64_t number = 0;
      std::string name;
      static_cast<void>(RecordReader(said) >> number >> name);
      next_number_ = std::max(next_number_, number);
      unfinished = std::max(unfinished, name);
    }
    if ((world_.rank() == 0) != is_first_) make_snapshots();
    open_folder();
    membership_ = world_.membership();
    given_up_.clear();
    if (unfinished.empty() || newest_ == unfinished) return;
    throw Error(ErrorCode::io,
                text("checkpoint ", (path_ / unfinished).string(),
                     " was not written, since the World was rebuilt meanwhile; those before it "
                     "are still there"));
  }

  // The same tensors on every rank, compared as DistributedDataParallel compares parameters.
  void check_model(CheckpointTensors const& tensors) {
    std::vector<Parameter> parameters;
    auto const add = [&](std::string const& kind, std::vector<NamedTensor> const& all) {
      for (NamedTensor const& each : all) parameters.push_back({kind + each.name, each.value, {}, {}});
    };
    add("model/", tensors.model);
    add("optimizer/", tensors.optimizer);
    for (ShardedTensor const& each : tensors.sharded_optimizer) {
      TensorView const whole{nullptr, each.shape, each.dtype, world_.device()};
      parameters.push_back({"sharded_optimizer/" + each.name, whole, {}, {}});
    }
    static_cast<void>(check_replicas(
        *group_.control, group_.name + "/same", group_.members, world_.device(), parameters, {}, [] {},
        Deadline::after(group_.timeout)));
  }

  void open_folder() {
    auto const words = together(group_, "/folder", [&]() -> std::string {
      if (world_.rank() != 0) return {};
      static_cast<void>(Sha256());  // throws without OpenSSL, before anything is written
      if (folder_) {
        folder_->clean();
      } else {
        folder_ = std::make_shared<CheckpointFolder>(path_, Deadline::after(kLockTime));
      }
      auto const names = folder_->complete();
      return names.empty() ? std::string() : to_string(names.front());
    });
    newest_ = words.front();
    auto const newest = parse_checkpoint_name(newest_);
    if (newest) next_number_ = std::max(next_number_, newest->number + 1);
  }

  void read(CheckpointManifest const& manifest, std::string const& name, CheckpointFileRecord const* own) {
    auto const checkpoint = path_ / name;
    auto const read_file = [&](CheckpointSnapshot const& snapshot, char const* file) {
      auto const* const record = manifest.find(file);
      if (record != nullptr) return snapshot.read(checkpoint, *record);
      if (snapshot.empty()) return;
      throw Error(ErrorCode::mismatch, text("checkpoint ", checkpoint.string(), " has no ", file,
                                            ", and this program has tensors for it"));
    };
    bool const first = world_.rank() == 0;
    if (first) read_file(*model_, kModelFile);
    if (first || optimizer_->divided()) read_file(*optimizer_, kOptimizerFile);
    if (own != nullptr) own_->read(checkpoint, *own);
  }

  // Each rank's parts from its own copy; to every rank what rank 0 has a copy of.
  void put_back(CheckpointSnapshot const& snapshot) {
    snapshot.give_back(world_.stream());
    for (NamedTensor const& tensor : snapshot.tensors()) {
      TensorView const bytes{tensor.value.data, Shape{tensor.value.bytes()}, DType::u8, tensor.value.device};
      if (bytes.count() == 0) continue;
      if (bytes.device == world_.device()) {
        world_.communicator().broadcast(bytes, Rank{0}, world_.stream());
      } else {
        broadcast_host_memory(bytes);
      }
    }
  }

  // On a rank with a GPU, host memory is sent through the GPU's memory, in parts.
  void broadcast_host_memory(TensorView const& bytes) {
    Stream& stream = world_.stream();
    Tensor const staging = zeros(Shape{std::min(kStagedBytes, bytes.count())}, DType::u8, world_.device());
    for (std::size_t at = 0; at < bytes.count(); at += kStagedBytes) {
      std::size_t const count = std::min(kStagedBytes, bytes.count() - at);
      copy_elements(slice(staging, 0, count), slice(bytes, at, count), stream);
      world_.communicator().broadcast(slice(staging, 0, count), Rank{0}, stream);
      copy_elements(slice(bytes, at, count), slice(staging, 0, count), stream);
    }
    stream.synchronize();  // before `staging` is freed
  }

  World world_;
  int membership_ = world_.membership();  // of group_
  std::filesystem::path path_;
  Options options_;
  CheckpointGroup group_;
  CheckpointTensors tensors_;                        // but for `rank`
  bool is_first_ = false;                            // whether the snapshots have memory
  std::shared_ptr<CheckpointSnapshot const> model_;  // shared with the writer
  std::shared_ptr<CheckpointSnapshot const> optimizer_;
  std::shared_ptr<CheckpointSnapshot const> own_;
  std::shared_ptr<CheckpointFolder> folder_;  // rank 0's
  std::uint64_t next_number_ = 1;             // above the numbers of all checkpoints that were there
  std::string newest_;
  std::string writing_;
  std::string given_up_;  // in follow(), which may be interrupted
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<CheckpointWriter> tidying_;  // complete, or failed: removes older ones
  int exceptions_at_start_ = std::uncaught_exceptions();
};

Checkpoint::Checkpoint(World world, std::filesystem::path const& folder, CheckpointTensors tensors,
                       Options options)
    : impl_(std::make_unique<Impl>(std::move(world), folder, std::move(tensors), options)) {}
Checkpoint::~Checkpoint() { leave_to_maker(impl_); }
Checkpoint::Checkpoint(Checkpoint&& other) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept = default;

std::string Checkpoint::newest() const { return impl_->newest(); }
std::optional<RestoredCheckpoint> Checkpoint::restore() { return impl_->restore(); }
void Checkpoint::save(TrainingPosition const& position) { impl_->save(position); }
void Checkpoint::wait() { impl_->wait(); }

}  // namespace ddp
