#include "comm/mpi/communicator.hpp"

#include <algorithm>
#include <random>

#include "bootstrap/bounded_call.hpp"
#include "bootstrap/server/hosted_control.hpp"
#include "comm/collective_arguments.hpp"
#include "comm/default_allocation.hpp"
#include "comm/mpi/factory.hpp"
#include "comm/solo/communicator.hpp"
#include "core/parse_number.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Different in every group of every job.
std::uint64_t new_id() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) | random();
}

// Making a communicator of MPI cannot be interrupted. All ranks are there when it begins.
template <class Call>
MPI_Comm make_comm(ControlPlane& control, char const* doing, Deadline deadline, Call call) {
  MPI_Comm made = MPI_COMM_NULL;
  CallWatch const watch(deadline, [&control, doing, deadline] {
    CommError const error(ErrorCode::timeout,
                          text(doing, " did not return within ", seconds(deadline.allowed()), " s on rank ",
                               control.rank(), "; MPI cannot be interrupted, so this process ends"));
    control.report_failure(error);
    log(LogLevel::error, error.what());
    std::_Exit(EXIT_FAILURE);
  });
  mpi::check(call(&made), doing);
  return made;
}

// Collective over the members alone. `comm` numbers the ranks as the control plane does (is_mpi()).
int create_of_members(MPI_Comm comm, std::span<Rank const> members, MPI_Comm* made) {
  std::vector<int> numbers;
  for (Rank const member : members) numbers.push_back(member.value());
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  int result = MPI_Comm_group(comm, &all);
  if (result == MPI_SUCCESS) {
    result = MPI_Group_incl(all, static_cast<int>(numbers.size()), numbers.data(), &some);
  }
  if (result == MPI_SUCCESS) result = MPI_Comm_create_group(comm, some, 0, made);
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  return result;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MemberGroup const& group, Deadline deadline) {
  auto const ids = group.exchange("communicator/mpi", text(new_id()), deadline);
  auto const* const own = static_cast<MPI_Comm const*>(mpi_comm(*group.control));
  MPI_Comm comm = make_comm(*group.control, "MPI_Comm_create_group", deadline, [&](MPI_Comm* made) {
    return create_of_members(own == nullptr ? MPI_COMM_WORLD : *own, group.world_ranks, made);
  });
  return std::make_unique<MpiCommunicator>(comm, parse_number<std::uint64_t>(ids[0]).value(), group);
}

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::uint64_t id, MemberGroup members)
    : HostCommunicatorBase(std::move(members), Device{}),
      group_(comm, id, members_),
      factors_(group_.size(), 1.0),
      sources_(group_.size()) {}

void MpiCommunicator::run_collective(Operation const& operation) {
  ++sequence_;
  Fingerprint const said = fingerprint_of(operation, sequence_);
  group_.begin(said);
  group_.meet({said, operation.op.factor != nullptr ? *operation.op.factor : 1.0},
              said.scaled ? std::span(factors_) : std::span<double>());
  for (std::size_t r = 0; r < sources_.size(); ++r) sources_[r].factor = said.scaled ? factors_[r] : 1.0;
  switch (operation.kind) {
    case OperationKind::all_reduce:
      return all_reduce(operation);
    case OperationKind::reduce:
      return reduce(operation);
    case OperationKind::reduce_scatter:
      return reduce_scatter(operation);
    case OperationKind::all_gather:
    case OperationKind::all_to_all:
      return exchange_blocks(operation);
    case OperationKind::broadcast:
      return broadcast(operation);
    default:
      return;  // meet() is all that a barrier needs
  }
}

std::unique_ptr<Communicator> MpiCommunicator::split_off(std::span<Rank const> ranks) {
  finish_operations("split");
  check_split_requests(gather_now(split_request(ranks, rank(), size())), members_.world_ranks);
  auto const ids = gather_now(std::vector<std::uint64_t>{new_id()});
  auto const place = std::ranges::find(ranks, rank());
  int const color = ranks.empty() ? MPI_UNDEFINED : ranks[0].value();
  int const key = static_cast<int>(place - ranks.begin());
  MPI_Comm comm = make_comm(*members_.control, "MPI_Comm_split", Deadline::after(members_.waiting.timeout),
                            [&](MPI_Comm* made) { return MPI_Comm_split(group_.comm(), color, key, made); });
  if (ranks.empty()) return nullptr;
  if (ranks.size() == 1) {
    MPI_Comm_free(&comm);
    return std::make_unique<SoloCommunicator>(device(), members_.waiting.timeout);
  }
  return std::make_unique<MpiCommunicator>(comm, ids[ranks[0].index()], members_.part(ranks));
}

Tensor MpiCommunicator::allocate(Bytes bytes) {
  finish_operations("allocate");
  return default_allocation_together(*this, bytes, device(), members_.world_ranks);
}

}  // namespace ddp
