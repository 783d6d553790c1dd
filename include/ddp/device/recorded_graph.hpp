// Work that was enqueued once, recorded, and is started again as a whole: a CUDA graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "ddp/core/export.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/stream.hpp"

// What cudaGraph_t, cudaGraphExec_t and cudaGraphNode_t point to.
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace DDP_EXPORT ddp {

/// What StepGraph records into. begin(), then end() or abandon(), then any number of launches. One thread at
/// a time, but destroy() may be called by any.
class RecordedGraph {
 public:
  virtual ~RecordedGraph() = default;
  RecordedGraph(RecordedGraph const&) = delete;
  RecordedGraph& operator=(RecordedGraph const&) = delete;

  /// From now on what the calling thread enqueues on `stream`, and on streams that wait for it, is recorded
  /// and not run.
  virtual void begin(Stream& stream) = 0;
  /// Makes the graph ready to be launched. Throws Error(device) if something was enqueued that a graph cannot
  /// hold, or if a stream that waited for this one was not waited for.
  virtual void end(Stream& stream) = 0;
  /// Ends the recording and forgets what is recorded.
  virtual void abandon(Stream& stream) noexcept = 0;
  /// Enqueues all of it. Throws Error(invalid_state) after destroy().
  virtual void launch(Stream& stream) = 0;
  /// From the next launch on `now` marks the place that `recorded` marked in the recording, with
  /// Event::record_in_replays().
  void set_event(Event const& recorded, Event const& now);
  /// Frees the graph. A launch that runs goes on.
  virtual void destroy() noexcept = 0;

  std::size_t operations = 0;  ///< recorded ones, of the communicator
  std::uint64_t digest = 0;    ///< of these: equal on ranks that recorded the same ones

 protected:
  /// CUDA's handles, between end() and destroy().
  struct Handles {
    CUgraph_st* graph;           ///< what was recorded
    CUgraphExec_st* executable;  ///< what is launched
  };
  RecordedGraph() = default;
  /// For end(), before the graph is made ready: small memsets become kernels, unless it allocates memory.
  /// Where a graph has branches, a memset between kernels costs several microseconds. Throws Error(device).
  static void replace_memsets(CUgraph_st* graph, Device device);
  /// Calls `use` while no other thread destroys the graph. Throws Error(invalid_state) after destroy().
  virtual void with_handles(std::function<void(Handles const&)> const& use) = 0;
  [[noreturn]] static void throw_destroyed();  ///< What launch() throws after destroy().

 private:
  std::unordered_multimap<CUevent_st*, CUgraphNode_st*> event_nodes_;  // once set_event() has looked for them
};

}  // namespace ddp
