#include "bootstrap/server/rendezvous.hpp"

#include <thread>
#include <utility>

#include "bootstrap/server/tcp.hpp"
#include "bootstrap/server/unix_socket.hpp"
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "core/system/own_process.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr Rank kServer{0};
constexpr std::chrono::milliseconds kBetweenTries{100};

std::shared_ptr<ControlPlane> join(RankInfo const& info, FileDescriptor socket, ServerClient::Server server,
                                   HostedControl::Start start, Deadline deadline) {
  return {new HostedControl(info, std::move(socket), std::move(server), std::move(start), deadline),
          DeleteOwn{}};
}

}  // namespace

Invitation Invitation::prepare(std::string who, bool of_one_host, FileDescriptor& network) {
  Invitation invitation;
  invitation.who = std::move(who);
  invitation.host = host_identity();
  if (of_one_host) return invitation;
  network = tcp::listen(0);
  invitation.port = tcp::port_of(network);
  invitation.secret = tcp::make_secret();
  invitation.addresses = tcp::own_addresses();
  return invitation;
}

std::string Invitation::text() const {
  std::string said = record(who, host, path, secret, port, problem);
  for (std::string const& address : addresses) append_field(said, address);
  return said;
}

Invitation Invitation::parse(std::string const& text) {
  Invitation read;
  RecordReader reader(text);
  if (!(reader >> read.who >> read.host >> read.path >> read.secret >> read.port >> read.problem)) {
    throw CommError(ErrorCode::protocol,
                    ddp::text("\"", text,
                              "\" does not tell where the control server is; are ddp-launch and all "
                              "ranks of the same version?"));
  }
  if (!read.problem.empty()) {
    throw Error(ErrorCode::io, ddp::text(read.who, " cannot serve the control plane: ", read.problem));
  }
  for (std::string address; reader >> address;) read.addresses.push_back(address);
  return read;
}

bool Invitation::is_of_this_host() const { return host == host_identity(); }

std::string Invitation::place() const {
  if (is_of_this_host()) return path;
  return ddp::text(who, " on ", host_name(host), ", at port ", port, " of ", ddp::join(addresses, ","));
}

FileDescriptor Invitation::connect(Deadline deadline) const {
  if (is_of_this_host()) return unix_socket::connect(path, who, "is it still running?", deadline);
  return tcp::connect({addresses, port, secret}, place(), deadline);
}

std::shared_ptr<HostedServer> start_server(RankInfo const& info, bool of_one_host, Invitation& invitation) {
  FileDescriptor network;
  invitation = Invitation::prepare("rank 0", of_one_host, network);
  auto server = HostedServer::start(
      {.size = info.size, .generation = info.generation, .secret = invitation.secret}, std::move(network));
  invitation.path = server->path();
  return server;
}

std::shared_ptr<ControlPlane> accept_invitation(RankInfo const& info, Invitation const& invitation,
                                                HostedControl::Start start, Deadline deadline) {
  ServerClient::Server server{invitation.who, invitation.place(), std::nullopt};
  if (invitation.who == "rank 0") server.rank = kServer;
  start.server_is_here = start.is_mpi && invitation.is_of_this_host();
  return join(info, invitation.connect(deadline), std::move(server), std::move(start), deadline);
}

std::shared_ptr<ControlPlane> connect_by_address(RankInfo const& info, Deadline deadline) {
  std::string const place = text(info.address, ':', info.port);
  if (info.rank != kServer) {
    std::string const who = text("rank 0 at ", place,
                                 info.source == RankSource::slurm
                                     ? " (the step's first host, unless MASTER_ADDR and MASTER_PORT are set)"
                                     : " (MASTER_ADDR, MASTER_PORT)");
    for (;; std::this_thread::sleep_for(kBetweenTries)) try {
        auto socket = tcp::connect({{info.address}, info.port, info.secret}, who, deadline);
        return join(info, std::move(socket), {"rank 0", place, kServer}, {}, deadline);
      } catch (Error const& error) {  // io: rank 0 is still in a World that this rank was in before
        if (error.code() != ErrorCode::io || deadline.expired()) throw;
      }
  }
  // Some starters tell rank 0 "localhost", and the others its name. With a secret no stranger gets in.
  bool const is_open = info.secret.empty() || info.secret_is_known;
  bool const only_here = tcp::is_loopback(info.address) && is_open;
  if (only_here) {
    log(LogLevel::info, text("rank 0 listens on this host alone, since MASTER_ADDR is ", info.address,
                             " and DDP_JOB_SECRET is not set"));
  } else if (is_open) {
    log(LogLevel::info, text("rank 0 listens at port ", info.port,
                             " for whoever comes: the network is trusted, since DDP_JOB_SECRET is not set"));
  }
  HostedControl::Start start;
  start.server = HostedServer::start(
      {.size = info.size, .generation = info.generation, .secret = info.secret, .min_ranks = info.min_ranks},
      only_here ? tcp::listen_here(info.address, info.port) : tcp::listen(info.port));
  std::string const path = start.server->path();
  auto socket = unix_socket::connect(path, "rank 0", "which is this process", deadline);
  return join(info, std::move(socket), {"rank 0", place, kServer}, std::move(start), deadline);
}

}  // namespace ddp
