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

// What the workspace of a group is for: dofs, elements of M, slots, rows of J, pieces, axes of a piece, cones.
struct Sizes {
  int64_t nv, nC = 0, slots = 0, rows = 0, pieces = 0, axes = 1, cones = 0;
};

// Of a solve: no more than all constraints can be in use.
inline Sizes sizes_of(const System& s) {
  Sizes sizes{s.nv, s.nC(), s.ngiven + s.rows, 0, int64_t(s.order.size()), s.axes};
  for (const int i : s.order) {
    sizes.rows += s.axes_of(i);
    sizes.cones += s.kind(i) == Kind::cone;
  }
  return sizes;
}

// Enough for each part of a system.
inline Sizes sizes_of_parts(const System& s) {
  Sizes most{0};
  for (const Part& part : s.parts) {
    const Sizes sizes = sizes_of(*part.system);
    for (const auto field : {&Sizes::nv, &Sizes::nC, &Sizes::slots, &Sizes::rows, &Sizes::pieces, &Sizes::axes,
                             &Sizes::cones}) {
      most.*field = std::max(most.*field, sizes.*field);
    }
  }
  return most;
}

template <class T>
Rows<T> lay_out_rows(Arena& arena, const Sizes& sizes) {
  const size_t padded = size_t(tiles(sizes.nv)) * kTile;
  const size_t slots = size_t(sizes.slots), n = size_t(sizes.rows), pieces = size_t(sizes.pieces);
  Rows<T> rows;
  for (Vec<T>** x : {&rows.value, &rows.weight, &rows.aref, &rows.damping, &rows.residual, &rows.rate, &rows.stiffness,
                     &rows.low, &rows.high}) {
    *x = arena.take<Vec<T>>(slots);
  }
  rows.dof = arena.take<int>(slots);
  rows.single = arena.take<Mask<T>>(slots);
  rows.piece = arena.take<Piece>(pieces);
  rows.owner = arena.take<int>(pieces * kLanes<T>);
  rows.active = arena.take<int>(pieces);
  rows.coupling = arena.take<Vec<T>>(n * size_t(sizes.axes));
  rows.pull = arena.take<Vec<T>>(n);
  rows.scaled = arena.take<Vec<T>>(n * kTile);
  rows.hits = arena.take<const Vec<T>*>(n);
  rows.spans = arena.take<Span>(n);
  rows.jac = arena.take<Vec<T>>(n * padded);
  rows.cone_weight = arena.take<Vec<T>>(size_t(sizes.cones));
  rows.cone_mu = arena.take<Vec<T>>(size_t(sizes.cones));
  rows.cone_line = arena.take<Vec<T>>(size_t(sizes.cones) * kConeLine);
  clear<T>(rows);
  return rows;
}

template <class T>
Work<T> lay_out(Arena& arena, const Sizes& sizes) {
  const int nb = tiles(sizes.nv);
  const size_t padded = size_t(nb) * kTile;
  Work<T> w;
  w.sparse = arena.take<Vec<T>>(size_t(sizes.nC + kChunk));
  w.sum = arena.take<Vec<T>>(matrix_size(nb));
  w.hessian = arena.take<Vec<T>>(matrix_size(nb));
  w.panel = arena.take<Vec<T>>(padded * kTile);
  w.cdof = arena.take<Vec<T>>(padded * 6);
  w.shape = arena.take<uint64_t>(size_t(nb));
  w.below = arena.take<int>(size_t(nb));
  for (Vec<T>** x : {&w.inverse, &w.force, &w.qacc, &w.smooth, &w.momentum, &w.pull, &w.grad, &w.search,
                     &w.search_momentum, &w.solved, &w.old_grad, &w.old_solved}) {
    *x = arena.take<Vec<T>>(padded);
  }
  w.rows = lay_out_rows<T>(arena, sizes);
  return w;
}

// A thread's workspace: one part for each group of a turn.
template <class T>
struct Workspace {
  Work<T> groups[kTurn];
  explicit Workspace(const Sizes& sizes) {
    Arena measure{nullptr};
    for (Work<T>& group : groups) group = lay_out<T>(measure, sizes);
    Arena arena{buffer.reserve(measure.used)};
    for (Work<T>& group : groups) group = lay_out<T>(arena, sizes);
  }
};

constexpr int64_t kGroupsPerThread = 8;  // fewer are not worth waking a thread

// Calls `body(workspace, turn)` for all worlds, on torch's threads.
template <class T, class Body>
void for_turns(const Sizes& sizes, int64_t worlds, const Body& body) {
  const int64_t size = groups_of_turn<T>(worlds) * kLanes<T>, turns = (worlds + size - 1) / size;
  uint32_t threads = 1;
  check(torch.get_num_threads(&threads));
  const int64_t useful = worlds / (kGroupsPerThread * kLanes<T>), used = useful < threads ? useful : threads;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  // The threads take turns as they get ready: the worlds' solves differ in length.
  parallel(used > 1 ? used : 1, 1, [&](int64_t, int64_t) {
    try {
      Workspace<T> workspace(sizes);
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
