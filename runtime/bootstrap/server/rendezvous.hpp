// How ranks find the control server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/server/hosted_control.hpp"

namespace ddp {

/// Where a server is, as it tells the ranks.
struct Invitation {
  std::string who = "rank 0";  ///< or "ddp-launch"
  std::string host;            ///< identity of its host
  std::string path;            ///< for ranks of that host
  std::string secret;          ///< for others, as are the next two
  int port = 0;                ///< 0: there is no other host
  std::vector<std::string> addresses;
  std::string problem;  ///< why it cannot serve; empty if it does

  /// For a server of this process, which then has the Unix socket `path`, and listens on `network`. That is
  /// left empty if all ranks are `of_one_host`. Throws Error(io).
  [[nodiscard]] static Invitation prepare(std::string who, bool of_one_host, FileDescriptor& network);
  [[nodiscard]] std::string text() const;
  /// Throws CommError(protocol), and Error(io) where there is a problem.
  [[nodiscard]] static Invitation parse(std::string const& text);
  /// A connection to the server, which has answered to the secret. Throws CommError(timeout), Error(io).
  [[nodiscard]] FileDescriptor connect(Deadline deadline) const;
  /// Where the server listens, in messages.
  [[nodiscard]] std::string place() const;
  [[nodiscard]] bool is_of_this_host() const;
};

/// Rank 0's server for a job that finds it by invitation. `of_one_host`: it listens on no network.
[[nodiscard]] std::shared_ptr<HostedServer> start_server(RankInfo const& info, bool of_one_host,
                                                         Invitation& invitation);
[[nodiscard]] std::shared_ptr<ControlPlane> accept_invitation(RankInfo const& info,
                                                              Invitation const& invitation,
                                                              HostedControl::Start start, Deadline deadline);

/// Ranks that know where rank 0 is: MASTER_ADDR and MASTER_PORT.
[[nodiscard]] std::shared_ptr<ControlPlane> connect_by_address(RankInfo const& info, Deadline deadline);

}  // namespace ddp
