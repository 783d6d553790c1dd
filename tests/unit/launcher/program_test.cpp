#include "launcher/plan/program.hpp"

#include <gtest/gtest.h>

#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

int exit_code_for(std::string const& name, std::string const& path) {
  try {
    static_cast<void>(resolve_program(name, path));
  } catch (ExitError const& error) {
    return error.exit_code();
  }
  return 0;
}

// F20
TEST(Program, IsLookedForAsAShellWould) {
  EXPECT_EQ(resolve_program("sh", "/nowhere:/bin"), "/bin/sh");
  EXPECT_EQ(resolve_program("/bin/sh", ""), "/bin/sh");
  EXPECT_EQ(exit_code_for("no-such-program", "/bin:/usr/bin"), 127);
  EXPECT_EQ(exit_code_for("/no/such/program", "/bin"), 127);
  EXPECT_EQ(exit_code_for("/etc/passwd/x", "/bin"), 127);
  EXPECT_EQ(exit_code_for("/etc/passwd", "/bin"), 126);
  EXPECT_EQ(exit_code_for("/bin", "/bin"), 126) << "a directory";
  EXPECT_EQ(exit_code_for("passwd", "/etc"), 126) << "there, but not executable";
}

}  // namespace
}  // namespace ddp::launcher
