#include "support/fakes/fake_nccl.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

using Flag = std::shared_ptr<std::atomic<bool>>;

Flag make_flag() { return std::make_shared<std::atomic<bool>>(false); }

// What the ranks of one communicator have in common.
struct Group {
  explicit Group(int ranks) : size(ranks) {}
  struct Split {
    struct Request {
      int color, key, rank;
    };
    std::vector<Request> requests;
    std::map<int, std::shared_ptr<Group>> children;
  };
  int size;
  std::mutex mutex;
  int arrived = 0;
  int left = 0;
  std::map<int, Split> splits;
};

struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Group>> by_id;
  std::string interface;
  std::atomic<int> ids{0};
  std::atomic<int> open{0};
  std::atomic<std::chrono::milliseconds> connects_in{};
};

thread_local int version_of_this_thread = NCCL_VERSION_CODE;

State& state() {
  static State all;
  return all;
}

// Until `done` or a flag says that it is to give up.
template <class Done>
ncclResult_t wait_until(Done done, Flag const& abort, Flag const& child_abort) {
  while (!done()) {
    if (*abort || (child_abort && *child_abort)) return ncclInternalError;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return ncclSuccess;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = -1;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  Flag abort = make_flag();
  Flag child_abort;  // of a child that is being made and shares nothing
  int splits = 0;
  std::atomic<ncclResult_t> result{ncclSuccess};
  std::thread job;

  ncclComm() { ++state().open; }
  ~ncclComm() {
    if (job.joinable()) job.join();
    --state().open;
  }

  template <class Work>
  ncclResult_t start(Work work) {
    if (job.joinable()) job.join();
    result = ncclInProgress;
    job = std::thread([this, work] { result = work(); });
    if (config.blocking == 0) return ncclInProgress;
    job.join();
    return result;
  }
};

namespace {

ncclResult_t split_in_turn(ncclComm* parent, int number, int color, int key, ncclComm** child,
                           ncclConfig_t const& config, Flag const& flag) {
  Group& group = *parent->group;
  Group::Split* split = nullptr;
  {
    std::lock_guard const lock(group.mutex);
    split = &group.splits[number];
    split->requests.push_back({color, key, parent->rank});
  }
  ncclResult_t const result = wait_until(
      [&] {
        std::lock_guard const lock(group.mutex);
        return split->requests.size() == static_cast<std::size_t>(group.size);
      },
      parent->abort, flag);
  if (result != ncclSuccess || color == NCCL_SPLIT_NOCOLOR) return result;
  auto* const made = new ncclComm;
  std::lock_guard const lock(group.mutex);
  std::vector<Group::Split::Request> members;
  std::copy_if(split->requests.begin(), split->requests.end(), std::back_inserter(members),
               [&](auto const& request) { return request.color == color; });
  std::sort(members.begin(), members.end(),
            [](auto const& a, auto const& b) { return a.key != b.key ? a.key < b.key : a.rank < b.rank; });
  auto& common = split->children[color];
  if (!common) common = std::make_shared<Group>(static_cast<int>(members.size()));
  made->group = common;
  made->config = config;
  made->abort = flag;
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (members[r].rank == parent->rank) made->rank = static_cast<int>(r);
  }
  *child = made;
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = version_of_this_thread;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof(id->internal));
  std::string const text = "fake id " + std::to_string(++state().ids);
  std::memcpy(id->internal, text.data(), text.size());
  char const* const interface = std::getenv("NCCL_SOCKET_IFNAME");
  std::lock_guard const lock(state().mutex);
  state().interface = interface == nullptr ? "unset" : interface;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  auto* const made = new ncclComm;
  made->rank = rank;
  made->config = *config;
  {
    std::lock_guard const lock(state().mutex);
    auto& group = state().by_id[id.internal];
    if (!group) group = std::make_shared<Group>(size);
    made->group = group;
  }
  *communicator = made;
  return made->start([made] {
    Group& group = *made->group;
    {
      std::lock_guard const lock(group.mutex);
      ++group.arrived;
    }
    auto const connected = std::chrono::steady_clock::now() + state().connects_in.load();
    return wait_until(
        [&] {
          std::lock_guard const lock(group.mutex);
          return group.arrived == group.size && std::chrono::steady_clock::now() >= connected;
        },
        made->abort, nullptr);
  });
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  *child = nullptr;
  bool const shares = parent->config.splitShare == 1;
  Flag const flag = shares ? parent->abort : make_flag();
  parent->child_abort = shares ? nullptr : flag;
  int const number = ++parent->splits;
  return parent->start(
      [=, settings = *config] { return split_in_turn(parent, number, color, key, child, settings, flag); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  *error = communicator->result;
  if (*error == ncclSuccess) communicator->child_abort = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  *communicator->abort = true;
  if (communicator->child_abort) *communicator->child_abort = true;
  delete communicator;
  return ncclSuccess;
}

// As NCCL's: returns when all ranks are there.
ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  return communicator->start([communicator] {
    Group& group = *communicator->group;
    {
      std::lock_guard const lock(group.mutex);
      ++group.left;
    }
    return wait_until(
        [&] {
          std::lock_guard const lock(group.mutex);
          return group.left == group.size;
        },
        communicator->abort, nullptr);
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

}  // extern "C"

namespace ddp::testing::fake_nccl {

int open_communicators() { return state().open; }
int connections() { return state().ids; }
std::string interface_of_last_id() {
  std::lock_guard const lock(state().mutex);
  return state().interface;
}
int most_ctas(ncclComm_t communicator) { return communicator->config.maxCTAs; }
void set_version(int version) { version_of_this_thread = version; }
void connect_in(std::chrono::milliseconds time) { state().connects_in = time; }
void fail(ncclComm_t communicator, ncclResult_t result) { communicator->result = result; }
bool is_told_to_abort(ncclComm_t communicator) { return *communicator->abort; }
int rank_of(ncclComm_t communicator) { return communicator->rank; }
int size_of(ncclComm_t communicator) { return communicator->group->size; }
bool is_blocking(ncclComm_t communicator) { return communicator->config.blocking == 1; }

}  // namespace ddp::testing::fake_nccl
