// CUDA's functions for events, and for marks in a stream, in place of its own: what they answer is for the
// test to say. A program that links this can link the rest of CUDA's runtime library too.
#pragma once

#include <thread>

namespace ddp::testing::fake_cuda {

/// Whether the GPU is through with all that was enqueued. At first it is. An event that is recorded then
/// stays reached.
void set_done(bool done);
/// Whether a kernel has failed: then streams answer with its error, and take no marks. Otherwise they pass
/// each mark at once.
void set_broken(bool broken);
/// Whether what is enqueued is recorded into a graph.
void set_capturing(bool capturing);
/// The thread that recorded the latest event.
[[nodiscard]] std::thread::id last_recorder();
/// Whether calls return. While they do not, they wait: so does CUDA while another thread has the driver's
/// lock.
void set_answering(bool answering);

}  // namespace ddp::testing::fake_cuda
