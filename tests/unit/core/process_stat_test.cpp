#include "core/system/process_stat.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

TEST(ProcessStat, BeginsBehindANameThatMayHoldAnything) {
  pid_t const child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "a) T (b");
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_THAT(process_stat(child), ::testing::StartsWith(text("T ", getpid(), " ")));
  EXPECT_EQ(how_stopped(child), "by a signal (SIGSTOP, Ctrl-Z)");
  EXPECT_EQ(describe_stopped(Rank{3}, child),
            text("; rank 3 (process ", child, ") is stopped by a signal (SIGSTOP, Ctrl-Z): kill -CONT ",
                 child, " lets it go on"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(process_stat(child), "");
  EXPECT_EQ(how_stopped(child), "");
}

TEST(ProcessStat, WhatRunsIsNotStopped) {
  EXPECT_EQ(how_stopped(getpid()), "");
  EXPECT_EQ(describe_stopped(Rank{0}, getpid()), "");
  EXPECT_EQ(how_stopped(0), "") << "a process of another host, or of another namespace";
}

}  // namespace
}  // namespace ddp
