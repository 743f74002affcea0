// Memory and threads.

#pragma once

#include <atomic>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "newton.h"

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
Work<T> lay_out(Arena& arena, int64_t nv, int64_t nefc) {
  const int nb = tiles(nv);
  const size_t padded = size_t(nb) * kTile, n = size_t(nefc);
  Work<T> w;
  w.mass = arena.take<Vec<T>>(matrix_size(nb));
  w.hessian = arena.take<Vec<T>>(matrix_size(nb));
  w.panel = arena.take<Vec<T>>(padded * kTile);
  for (Vec<T>** x : {&w.inverse, &w.force, &w.qacc, &w.smooth, &w.momentum, &w.grad, &w.search, &w.search_momentum}) {
    *x = arena.take<Vec<T>>(padded);
  }
  for (Vec<T>** x : {&w.rows.weight, &w.rows.aref, &w.rows.residual, &w.rows.rate, &w.rows.stiffness}) {
    *x = arena.take<Vec<T>>(n);
  }
  w.cdof = arena.take<Vec<T>>(6 * size_t(nv));
  w.rows.scaled = arena.take<Vec<T>>(n * kTile);
  w.rows.blocks = arena.take<uint64_t>(n);
  w.rows.entries = arena.take<Entry>(n * kLanes<T>);
  w.rows.active = arena.take<int>(n);
  w.rows.hits = arena.take<const Vec<T>*>(n);
  w.rows.spans = arena.take<Span>(n);
  w.rows.jac = arena.take<Vec<T>>(n * padded);
  clear<T>(w.rows);
  return w;
}

// A thread's workspace: one part for each group of a turn.
template <class T>
struct Workspace {
  Work<T> groups[kTurn];
  Workspace(int64_t nv, int64_t nefc) {
    Arena measure{nullptr};
    for (Work<T>& group : groups) group = lay_out<T>(measure, nv, nefc);
    Arena arena{buffer.reserve(measure.used)};
    for (Work<T>& group : groups) group = lay_out<T>(arena, nv, nefc);
  }
};

constexpr int64_t kTurnsPerThread = 2;  // fewer are not worth starting a thread (some 20 us)

// Calls `body(workspace, turn)` for all worlds, on up to `threads` threads. Returns 0, or 1 if memory ran out.
template <class T, class Body>
int for_turns(int64_t nv, int64_t nefc, int64_t worlds, int threads, const Body& body) {
  const int64_t size = int64_t(kTurn) * kLanes<T>, turns = (worlds + size - 1) / size;
  const int64_t useful = turns / kTurnsPerThread;
  const int used = int(useful < threads ? useful : threads);
  std::atomic<int64_t> next{0};
  std::atomic<int> failed{0};
  auto run = [&] {
    try {
      Workspace<T> workspace(nv, nefc);
      for (int64_t i = next.fetch_add(1); i < turns; i = next.fetch_add(1)) {
        const int64_t world = i * size, left = worlds - world < size ? worlds - world : size;
        const int groups = int((left + kLanes<T> - 1) / kLanes<T>);
        body(workspace.groups, Turn{world, groups, int(left - int64_t(groups - 1) * kLanes<T>)});
      }
    } catch (const std::bad_alloc&) {
      failed = 1;
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < used; ++i) {
    try {
      helpers.emplace_back(run);
    } catch (const std::system_error&) {
      break;  // the threads there are do all the work
    }
  }
  run();
  for (std::thread& helper : helpers) helper.join();
  return failed;
}

}  // namespace
