// What NCCL is told when ranks are connected.
#include "comm/nccl/connect.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/network_interfaces.hpp"
#include "ddp/core/text.hpp"
#include "support/errors.hpp"
#include "support/fakes/fake_nccl_ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

constexpr char const* kInterface = "NCCL_SOCKET_IFNAME";
constexpr char const* kService = "NCCL_RAS_ENABLE";

std::string variable(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}

// Variables, until the end of a test.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<std::string, std::string>> const& set) {
    for (auto const& [name, value] : set) {
      names_.push_back(name);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (auto const& name : names_) ::unsetenv(name.c_str());
  }
  Environment(Environment const&) = delete;
  Environment& operator=(Environment const&) = delete;

 private:
  std::vector<std::string> names_;
};

class NcclInit : public FakeNcclRanks {
 protected:
  // Like the replicas of a DataParallel, they are threads of one process.
  void connect() {
    on_ranks(3, 1min, [](NcclConnection const& connection, int) { connection.handles->close(); });
  }
};

TEST_F(NcclInit, AJobOfOneHostKeepsNcclOnItAndLeavesTheVariablesAsTheyWere) {
  connect();
  EXPECT_EQ(fake_nccl::interface_of_last_id(), "lo");
  EXPECT_EQ(variable(kInterface), "unset");
  EXPECT_EQ(variable(kService), "unset");
}

// NCCL goes by the first interface that it found, for the World that comes later too.
TEST_F(NcclInit, AProcessOfAJobOfSeveralHostsLeavesTheInterfaceToNccl) {
  Environment const two_hosts({{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  connect();
  EXPECT_EQ(fake_nccl::interface_of_last_id(), "unset");
}

TEST_F(NcclInit, AnEnvironmentThatDoesNotTellOfHostsLeavesTheInterfaceToNccl) {
  Environment const unknown({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  connect();
  EXPECT_EQ(fake_nccl::interface_of_last_id(), "unset");
}

TEST_F(NcclInit, WhatTheUserSetStays) {
  Environment const set({{kInterface, "^eth7"}, {kService, "1"}});
  connect();
  EXPECT_EQ(fake_nccl::interface_of_last_id(), "^eth7");
  EXPECT_EQ(variable(kInterface), "^eth7");
  EXPECT_EQ(variable(kService), "1");
}

TEST_F(NcclInit, AnInterfaceThatNoHostHasIsNamedToEveryRankBeforeNcclLooksForIt) {
  Environment const set(std::vector<std::pair<std::string, std::string>>{{kInterface, "=nothing7"}});
  host_of_ = [](int rank) { return text("host", rank); };
  int const before = fake_nccl::connections();
  EXPECT_THAT(
      error_of([&] { connect(); }).what(),
      ::testing::ContainsRegex("rank 0 cannot take part: on .*: NCCL_SOCKET_IFNAME==nothing7 admits none of "
                               "the interfaces of this host \\(.*\\); name the one"));
  EXPECT_EQ(fake_nccl::connections(), before);
}

TEST(NcclInterfaces, AreAdmittedByTheRulesOfNccl) {
  struct Case {
    char const* value;
    char const* interface;
    bool admitted;
  };
  for (auto const& [value, interface, admitted] :
       {Case{"eth", "eth0", true}, Case{"eth", "ib0", false}, Case{"=eth", "eth0", false},
        Case{"=eth0", "eth0", true}, Case{"ib,eth", "eth1", true}, Case{"=ib0,eth0", "eth0", true},
        Case{"^docker,lo", "lo", false}, Case{"^docker,lo", "eth0", true}, Case{"^=eth0", "eth01", true},
        Case{"^=eth0", "eth0", false}, Case{"", "eth0", true}, Case{"=eth0:1234", "eth0", true}}) {
    EXPECT_EQ(nccl::admits_interface(value, interface), admitted) << value << " " << interface;
  }
}

// On a machine with much to do NCCL takes seconds, whatever a program's operations may take.
TEST_F(NcclInit, ConnectingMayTakeLongerThanAnOperation) {
  auto const job = std::make_shared<InProcessJob>(2);
  auto const controls = job->control_planes();
  auto const connect_within = [&](std::chrono::milliseconds init_timeout) {
    run_ranks(2, [&](int r) {
      auto const& control = controls[static_cast<std::size_t>(r)];
      NcclGroup group{
          {control, "test", control->everyone(), control->rank(), {400ms, "", false, init_timeout}},
          Device{}};
      auto const connection = connect_nccl(std::move(group), Deadline::after(400ms));
      try {
        open_nccl(connection.group, *connection.handles, true, [] { return true; });
      } catch (CommError const&) {
        connection.handles->abort([] {});
        throw;
      }
      connection.handles->close();
    });
  };
  fake_nccl::connect_in(1500ms);
  EXPECT_NO_THROW(connect_within(1min));
  fake_nccl::connect_in(1min);
  EXPECT_THAT(error_of([&] { connect_within(600ms); }).what(),
              ::testing::ContainsRegex("waited 0.6 s for NCCL to connect ranks 0, 1, which are all there"));
}

// NCCL reads its variable once a process, before which a program may have made communicators already.
TEST_F(NcclInit, ABoundOnCtasIsTheCommunicatorsOwn) {
  auto const job = std::make_shared<InProcessJob>(2);
  auto const controls = job->control_planes();
  auto const connect_with = [&](int most_ctas) {
    run_ranks(2, [&](int r) {
      auto const& control = controls[static_cast<std::size_t>(r)];
      NcclGroup group{{control, "test", control->everyone(), control->rank(), {1min}}, Device{}, most_ctas};
      auto const connection = connect_nccl(std::move(group), Deadline::after(1min));
      open_nccl(connection.group, *connection.handles, true, [] { return true; });
      int const expected = most_ctas == 0 ? NCCL_CONFIG_UNDEF_INT : most_ctas;
      EXPECT_EQ(fake_nccl::most_ctas(connection.handles->work()), expected);
      connection.handles->close();
    });
  };
  connect_with(0);
  connect_with(16);
  EXPECT_EQ(variable("NCCL_MAX_CTAS"), "unset");
}

}  // namespace
}  // namespace ddp::testing
