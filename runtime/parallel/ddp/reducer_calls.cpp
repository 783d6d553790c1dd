// What DistributedDataParallel and AutogradSupport pass on to the reducer.
#include <utility>

#include "ddp/parallel/autograd_support.hpp"
#include "parallel/ddp/reducer_access.hpp"

namespace ddp {

using DDP = DistributedDataParallel;

void DDP::gradient_ready(std::size_t index) { reducer_->gradient_ready(index); }
void DDP::gradient_ready(std::size_t index, Tensor source) {
  reducer_->gradient_ready(index, std::move(source));
}
void DDP::no_gradient(std::size_t index) { reducer_->no_gradient(index); }
void DDP::abandon_step(std::string_view reason) noexcept { reducer_->abandon_step(reason); }
bool DDP::in_step() const noexcept { return reducer_->in_step(); }
void DDP::set_weight(double weight) { reducer_->set_weight(weight); }
std::span<Slice const> DDP::slices() const { return reducer_->slices(); }
void DDP::update_slices(SliceReady const& update) { reducer_->update_slices(update); }
void DDP::begin_forward() { reducer_->begin_forward(); }
NoSyncGuard DDP::no_sync(bool when) { return reducer_->no_sync(when); }
void DDP::zero_gradients() { reducer_->zero_gradients(); }
bool DDP::has_gradient(std::size_t index) { return reducer_->has_gradient(index); }
TensorView DDP::used_parameters() const { return reducer_->used_parameters(); }
TensorView DDP::gradient_norm() const { return reducer_->gradient_norm(); }
TensorView DDP::found_nonfinite() const { return reducer_->found_nonfinite(); }
TensorView DDP::uncommitted() const { return reducer_->uncommitted(); }
std::vector<NonfiniteGradient> DDP::nonfinite_gradients() { return reducer_->nonfinite_gradients(); }
void DDP::rebind_value(std::size_t index, TensorView const& value) { reducer_->rebind_value(index, value); }
std::span<Parameter const> DDP::parameters() const noexcept { return reducer_->parameters(); }
BucketPlan const& DDP::plan() const noexcept { return reducer_->plan(); }
std::size_t DDP::messages() const { return reducer_->messages(); }

void AutogradSupport::no_gradient(std::size_t index, Tensor kept) {
  ddp_->reducer_->no_gradient(index, std::move(kept));
}
void AutogradSupport::send_rest() { ddp_->reducer_->send_rest(); }
void AutogradSupport::abandon_step(std::string_view reason) noexcept {
  ddp_->reducer_->abandon_step(reason, true);
}
void AutogradSupport::since_last_step(bool changed_parameters, bool cleared_gradients) {
  ddp_->reducer_->since_last_step(changed_parameters, cleared_gradients);
}
void AutogradSupport::tell_with_tail(std::size_t flags, TellFlags say) {
  ddp_->reducer_->tell_with_tail(flags, std::move(say));
}
std::span<std::uint8_t const> AutogradSupport::told_with_tail() { return ddp_->reducer_->told_with_tail(); }

}  // namespace ddp
