// NCCL's end of a communicator waits for a thread that looks for its stop each 500 ms, between two poll(). A
// test program makes a communicator in most of its cases, so here those waits are short.
#include <dlfcn.h>

// As <poll.h> declares it, which may have it inline.
struct pollfd;
extern "C" int poll(pollfd* files, unsigned long count, int milliseconds) {
  static auto* const original = reinterpret_cast<decltype(&poll)>(dlsym(RTLD_NEXT, "poll"));
  return original(files, count, milliseconds == 500 ? 5 : milliseconds);
}
