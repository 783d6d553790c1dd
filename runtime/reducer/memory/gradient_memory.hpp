// Where the gradients of a plan lie, for each kind of storage.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/options.hpp"
#include "ddp/reducer/parameter.hpp"
#include "reducer/lane.hpp"
#include "reducer/memory/gradient_run.hpp"
#include "reducer/memory/gradient_sources.hpp"
#include "reducer/memory/value_claim.hpp"

namespace ddp {

/// Copies elements, or converts them where the types differ: of one pair of types; at least one.
void move_elements(std::span<Copy const> copies, Stream& stream);

class GradientChecks;

/// Where the gradients of a model lie for each kind of storage, what each bucket sends, and how it is filled
/// and given back.
class GradientMemory {
 public:
  /// What a program says of this memory.
  struct Options {
    explicit Options(DistributedDataParallelOptions const& all)
        : storage(all.storage), reduce_dtype(all.reduce_dtype), allocate(all.allocate) {}
    GradientStorage storage;
    std::optional<DType> reduce_dtype;
    std::function<Tensor(Bytes bytes, Device device)> allocate;
  };
  /// `name`: who claims the values. `lanes` and `parameters` must outlive this object.
  GradientMemory(std::string name, Options options, std::vector<ReducerLane> const& lanes,
                 std::vector<Parameter> const& parameters)
      : name_(std::move(name)), options_(std::move(options)), lanes_(lanes), parameters_(parameters) {}

  /// What ranks must have alike.
  [[nodiscard]] std::string describe() const;
  /// Whether gradients lie in arenas, which parameters are bound to.
  [[nodiscard]] bool has_arenas() const noexcept { return options_.storage == GradientStorage::arena; }
  [[nodiscard]] bool is_in_place() const noexcept { return options_.storage == GradientStorage::in_place; }

  /// Begins to use `plan`. Gradients of an earlier plan of the same parameters are moved to it through host
  /// memory, one arena after another, since a GPU may not have room for a second one. Collective where memory
  /// is made, unless Options::allocate makes it. `merge`: with in_place, whether neighbours travel as one
  /// message; equal on every rank. Binds gradients of arenas. `plan` must outlive its use.
  void plan_changed(BucketPlan const& plan, bool merge);

  /// Zeroed memory for the arenas of `plan`. Collective unless Options::allocate makes it.
  [[nodiscard]] std::vector<Tensor> make_arenas(BucketPlan const& plan) const;
  /// A bucket's gradients, one-dimensional. Only with arenas.
  [[nodiscard]] TensorView bucket(std::size_t index) const;

  /// The messages of a bucket: one with arena and copy, or of another dtype (Options::reduce_dtype), one or
  /// more with in_place. Those of another dtype share memory, so a bucket's is to be read before the next
  /// bucket's is written.
  [[nodiscard]] std::span<TensorView const> messages(std::size_t bucket) const noexcept {
    return messages_[bucket];
  }
  /// The gradient of a parameter, as the program sees it.
  [[nodiscard]] TensorView const& gradient(std::size_t parameter) const noexcept {
    return gradients_[parameter];
  }
  /// Whether a bucket is sent in another type than its gradients have.
  [[nodiscard]] bool converts(std::size_t bucket) const noexcept {
    return messages_[bucket][0].dtype != plan_->buckets()[bucket].dtype;
  }
  /// Throws Error(invalid_argument) if `source` cannot be the gradient of this parameter.
  void check_source(std::size_t parameter, TensorView const& source) const;
  /// Sets all gradients to zero, on the compute streams.
  void zero();

  /// Where the gradient of a parameter lies in this step; without memory: where it is bound. Only with
  /// arenas.
  void set_source(std::size_t parameter, Tensor source) { sources_.set(parameter, std::move(source)); }
  /// Releases all sources.
  void release_sources() noexcept { sources_.release(); }

  /// How a bucket is filled.
  struct Filling {
    std::span<std::uint8_t const> used;  ///< by parameter, 0: there is no gradient
    GradientChecks* checks = nullptr;    ///< which look at what is sent; or null
    bool may_send_sources = false;       ///< a bucket that is a part of one source may be sent from there
    bool is_recorded = false;            ///< nothing that is enqueued runs
  };
  /// Enqueues on its communication stream what writes a bucket's gradients to where they are sent from, if
  /// they do not lie there: gradients that lie elsewhere, and zeros for those that are not used. With copy
  /// the program's gradient stays as it is.
  void fill(std::size_t bucket, Filling const& filling);
  /// Of a bucket that was filled: what is sent, and where to, if it is sent from a source.
  struct Direct {
    TensorView from;
    TensorView to;
  };
  [[nodiscard]] std::optional<Direct> sent_from_source(std::size_t bucket) const;
  /// Called after a bucket's reduction: copies the results, which are those of `slices`, back if they do not
  /// lie in the gradients.
  void give_back(std::size_t bucket, std::span<BucketSlice const> slices, bool is_recorded);

  /// Throws Error(invalid_state) if another object has taken gradients of these values (ValueClaim).
  void check_claim() const { claim_->check(); }
  void move_claim(TensorView const& from, TensorView const& to) { claim_->move(from, to); }

 private:
  [[nodiscard]] std::vector<Tensor> arenas_of(BucketPlan const& plan) const;
  void make_conversion_buffers(BucketPlan const& plan);
  void take_gradients(std::span<TensorView const> from) const;
  [[nodiscard]] TensorView const* conversion_buffer(Device device) const noexcept;  // null: none
  [[nodiscard]] Stream& comm_stream(std::size_t bucket) const;
  void keep_sources(std::size_t bucket, bool is_recorded);
  [[nodiscard]] bool lies_in_message(std::size_t bucket) const noexcept {
    return options_.storage != GradientStorage::copy && !converts(bucket);
  }

  std::string name_;
  Options options_;
  std::vector<ReducerLane> const& lanes_;
  std::vector<Parameter> const& parameters_;
  BucketPlan const* plan_ = nullptr;
  std::vector<Tensor> arenas_;
  std::vector<Tensor> conversion_buffers_;  // the last one of a device is in use; work may still use others
  std::vector<std::vector<TensorView>> messages_;
  std::vector<TensorView> gradients_;
  GradientSources sources_;                // with arenas
  std::vector<std::uint8_t> from_source_;  // by bucket: it is sent from its source
  std::optional<ValueClaim> claim_;
  std::vector<Copy> copies_;         // of one bucket
  std::vector<std::size_t> copied_;  // their parameters
  std::vector<GradientRun> runs_;    // gradients that lie where they are sent from
};

}  // namespace ddp
