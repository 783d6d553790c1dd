// A C program that never flushes: printing_rank WORDS… prints each as a line and acts on the last one.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) std::printf("%s\n", argv[i]);
  std::string_view const action = argc > 1 ? argv[argc - 1] : "";
  if (action == "kill") std::raise(SIGKILL);
  if (action == "sleep") sleep(60);
  if (action == "colours")
    std::fputs(isatty(STDOUT_FILENO) == 1 ? "\x1b[31mred\x1b[0m\n" : "plain\n", stdout);
  return 0;
}
