// How ranks of different hosts notice that a process has ended.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// Rank 0's ends of idle TCP connections to ranks of other hosts. MPI does not tell that a process has ended,
/// and mpirun tells it only at the end of the job; but the kernel of a process's host closes its connections
/// at once. A cut network closes none, since nothing is sent, not even probes. A process that connects must
/// know a secret that only ranks get. One thread at a time.
class Lifelines {
 public:
  /// Listens on all interfaces, at any free port. `host_names`: of each rank. Throws Error(io).
  explicit Lifelines(std::vector<std::string> host_names);

  /// What a rank needs to connect; without white space.
  [[nodiscard]] std::string const& invitation() const noexcept { return invitation_; }
  /// Takes in ranks that have come. Returns those whose connections have closed since the last call. Never
  /// blocks.
  [[nodiscard]] std::vector<Failure> ended();

 private:
  struct Line {
    FileDescriptor socket;
    std::string greeting;      // as far as it has come
    std::optional<Rank> rank;  // once that is whole
    bool holds = false;        // the rank has chosen this connection
  };
  void take_in();
  /// False if the connection is to be closed.
  [[nodiscard]] bool read(Line& line);
  [[nodiscard]] std::optional<Rank> rank_of(std::string_view greeting) const;

  std::vector<std::string> host_names_;  // by rank
  std::vector<bool> has_line_;           // or had one, that it held
  std::string secret_;
  std::string invitation_;
  FileDescriptor listening_;
  FileDescriptor events_;       // epoll
  std::map<int, Line> lines_;   // by descriptor
  std::vector<int> strangers_;  // lines of unknown ranks, the oldest first
};

/// A rank's end of its connection to rank 0. One thread at a time.
class Lifeline {
 public:
  Lifeline() = default;
  /// Tries all addresses of the invitation at once. Holds nothing if none answers within two seconds or
  /// the deadline, as behind a firewall.
  Lifeline(std::string const& invitation, Rank me, Deadline deadline);

  [[nodiscard]] bool holds() const noexcept { return static_cast<bool>(socket_); }
  /// Whether the process of rank 0 has ended.
  [[nodiscard]] bool has_ended() noexcept;
  /// Leaves the connection open until the process ends.
  void keep_open() noexcept;

 private:
  FileDescriptor socket_;
  bool lost_touch_ = false;  // the network had an error
};

}  // namespace ddp
