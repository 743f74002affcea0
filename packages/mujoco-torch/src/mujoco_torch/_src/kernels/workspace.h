// Memory and threads.

#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

#include "newton.h"
#include "torch_api.h"

namespace {

// ---- memory and threads

// One buffer per thread, kept between calls: fresh memory costs a page fault per 4 KiB.
struct Buffer {
  char* data = nullptr;
  size_t size = 0;
  ~Buffer() { std::free(data); }
  char* reserve(size_t bytes) {
    if (bytes > size) {
      std::free(data);
      size = (bytes + kBytes - 1) / kBytes * kBytes;
      data = static_cast<char*>(std::aligned_alloc(kBytes, size));
      if (!data) {
        size = 0;
        throw std::bad_alloc();
      }
    }
    return data;
  }
};

thread_local Buffer buffer;

// Hands out arrays of one block of memory; with no base it only counts.
struct Arena {
  char* base;
  size_t used = 0;
  template <class X>
  X* take(size_t n) {
    X* out = base ? reinterpret_cast<X*>(base + used) : nullptr;
    used += (n * sizeof(X) + kBytes - 1) / kBytes * kBytes;
    return out;
  }
};

template <class T>
Work<T> lay_out(Arena& arena, int64_t nv, int64_t nC, int64_t nefc, int64_t cone_slots) {
  const int nb = tiles(nv);
  const size_t padded = size_t(nb) * kTile, n = size_t(nefc);
  Work<T> w;
  w.mass = arena.take<Vec<T>>(matrix_size(nb));
  w.sparse = arena.take<Vec<T>>(size_t(nC));
  w.sum = arena.take<Vec<T>>(matrix_size(nb));
  w.hessian = arena.take<Vec<T>>(matrix_size(nb));
  w.panel = arena.take<Vec<T>>(padded * kTile);
  w.shape = arena.take<uint64_t>(size_t(nb));
  w.below = arena.take<int>(size_t(nb));
  for (Vec<T>** x : {&w.inverse, &w.force, &w.qacc, &w.smooth, &w.momentum, &w.grad, &w.search, &w.search_momentum,
                     &w.solved, &w.old_grad, &w.old_solved}) {
    *x = arena.take<Vec<T>>(padded);
  }
  for (Vec<T>** x : {&w.rows.weight, &w.rows.aref, &w.rows.damping, &w.rows.residual, &w.rows.rate, &w.rows.stiffness,
                     &w.rows.low, &w.rows.high}) {
    *x = arena.take<Vec<T>>(n);
  }
  w.arms.stride = (nv + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
  w.arms.cdof = arena.take<T>(size_t(kLanes<T> * 6 * w.arms.stride));
  w.arms.power = arena.take<T>(size_t(kMaxAxes * w.arms.stride));
  w.rows.scaled = arena.take<Vec<T>>(n * kTile);
  w.rows.blocks = arena.take<uint64_t>(n);
  w.rows.entries = arena.take<Entry>(n * kLanes<T>);
  w.rows.active = arena.take<int>(n);
  w.rows.hits = arena.take<const Vec<T>*>(n);
  w.rows.spans = arena.take<Span>(n);
  w.rows.jac = arena.take<Vec<T>>(n * padded);
  const size_t cones = size_t(cone_slots);  // no more of them than slots
  w.rows.cone_weight = arena.take<Vec<T>>(cones);
  w.rows.cone_mu = arena.take<Vec<T>>(cones);
  w.rows.cone_line = arena.take<Vec<T>>(cones * kConeLine);
  w.rows.bent = arena.take<Vec<T>>(cones * padded);
  clear<T>(w.rows);
  return w;
}

// A thread's workspace: one part for each group of a turn.
template <class T>
struct Workspace {
  Work<T> groups[kTurn];
  Workspace(int64_t nv, int64_t nC, int64_t nefc, int64_t cone_slots) {
    Arena measure{nullptr};
    for (Work<T>& group : groups) group = lay_out<T>(measure, nv, nC, nefc, cone_slots);
    Arena arena{buffer.reserve(measure.used)};
    for (Work<T>& group : groups) group = lay_out<T>(arena, nv, nC, nefc, cone_slots);
  }
};

constexpr int64_t kTurnsPerThread = 2;  // fewer are not worth waking a thread

// Calls `body(workspace, turn)` for all worlds, on torch's threads.
template <class T, class Body>
void for_turns(int64_t nv, int64_t nC, int64_t nefc, int64_t worlds, const Body& body, int64_t cone_slots = 0) {
  const int64_t size = int64_t(kTurn) * kLanes<T>, turns = (worlds + size - 1) / size;
  uint32_t threads = 1;
  check(torch.get_num_threads(&threads));
  const int64_t useful = turns / kTurnsPerThread, used = useful < threads ? useful : threads;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  // The threads take turns as they get ready: the worlds' solves differ in length.
  parallel(used > 1 ? used : 1, 1, [&](int64_t, int64_t) {
    try {
      Workspace<T> workspace(nv, nC, nefc, cone_slots);
      for (int64_t i = next.fetch_add(1); i < turns; i = next.fetch_add(1)) {
        const int64_t world = i * size, left = worlds - world < size ? worlds - world : size;
        const int groups = int((left + kLanes<T> - 1) / kLanes<T>);
        body(workspace.groups, Turn{world, groups, int(left - int64_t(groups - 1) * kLanes<T>)});
      }
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  if (failed) throw std::runtime_error("mujoco_torch: no memory for the solver's workspace");
}

}  // namespace
