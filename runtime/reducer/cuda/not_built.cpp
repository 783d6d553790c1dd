#include "ddp/core/text.hpp"
#include "reducer/checks/gradient_checks.hpp"
#include "reducer/checks/replica_check.hpp"
#include "reducer/parts/rank_flags.hpp"
#include "reducer/parts/step_commit.hpp"
#include "reducer/parts/step_head.hpp"
#include "reducer/statistics/rank_times.hpp"

namespace ddp::cuda {
namespace {

[[noreturn]] void refuse(Device device) {
  throw Error(ErrorCode::unsupported, text("gradients on ", device, " need a build with CUDA"));
}

}  // namespace

std::unique_ptr<StepHead> make_step_head(ReducerLane const& lane) { refuse(lane.device); }

void write_flags(TensorView const& words, std::span<std::uint8_t const> /*flags*/, Stream& /*stream*/) {
  refuse(words.device);
}

void write_pair(TensorView const& words, std::array<double, 2> /*values*/, Stream& /*stream*/) {
  refuse(words.device);
}

void find_nonfinite(std::span<GradientRun const> /*runs*/, std::uint8_t* /*flags*/, Stream& stream) {
  refuse(stream.device());
}
void forget_without_weight(std::uint8_t* /*flags*/, std::size_t /*count*/, double const* /*factor*/,
                           Stream& stream) {
  refuse(stream.device());
}
void sum_squares(std::span<GradientRun const> /*runs*/, double* /*squares*/, Stream& stream) {
  refuse(stream.device());
}
void finish_checks(GradientChecks::Words const& /*words*/, Stream& stream) { refuse(stream.device()); }
void multiply(std::span<GradientRun const> /*runs*/, double const* /*factor*/, Stream& stream) {
  refuse(stream.device());
}
void load_check_kernels() {}
void hash_elements(std::span<GradientRun const> /*runs*/, std::uint64_t* /*hashes*/, Stream& stream) {
  refuse(stream.device());
}
void load_hash_kernels() {}
void load_commit_kernel(Device device) { refuse(device); }
void commit_step(StepCommit::Words const& /*words*/, Stream& stream) { refuse(stream.device()); }
void require_no_failure(Stream& stream) { refuse(stream.device()); }

}  // namespace ddp::cuda
