// Poses of bodies, joints and what is fixed to bodies, down the tree of bodies.

#pragma once

#include <vector>

#include "spatial.h"
#include "structure.h"

namespace {

template <class T>
struct Poses {
  const Pattern *parent, *joint, *carrier;
  Items<T> resting, motion, slots, local;  // of slots position, axis, and whether the joint is free
  Results<T> body, axes, attached;

  // The joint of each slot (slot-major), -1 where there is none.
  std::vector<int64_t> joints() const {
    std::vector<int64_t> found(size_t(joint->columns), -1);
    for (int64_t j = 0; j < joint->rows; ++j) found[size_t(joint->column[j])] = j;
    return found;
  }

  // A body relative to the world, from its parent's frame, and the anchors and axes of its joints.
  Frame<T> moved(Frame<T> frame, int64_t b, const std::vector<int64_t>& joint_of, int64_t world, int count) const {
    for (int64_t slot = b; slot < joint->columns; slot += body.n) {
      const int64_t j = joint_of[size_t(slot)];
      if (j < 0) continue;
      const Frame<T> step = motion.frame(slot, world, count);
      const Vector<T> anchor = frame.pos + rotate<T>(frame.quat, slots.vector(slot, world, count));
      axes.vector(j, world, count, anchor + scaled<T>(slots.at(6, slot, world, count), step.pos));
      axes.vector(j, world, count, rotate<T>(frame.quat, slots.vector(slot, world, count, 3)), 3);
      frame = compose<T>(frame, step);
    }
    return frame;
  }

  void run(const std::vector<int64_t>& joint_of, int64_t world, int count) const {
    thread_local std::vector<Frame<T>> frames;
    frames.resize(size_t(body.n));
    for (int64_t b = 0; b < body.n; ++b) {
      const int64_t above = parent->column[size_t(b)];
      Frame<T> frame = resting.frame(b, world, count);
      if (above < b) frame = compose<T>(frames[size_t(above)], frame);
      frame = moved(frame, b, joint_of, world, count);
      frame.quat = normalized<T>(frame.quat);
      frames[size_t(b)] = frame;
      body.vector(b, world, count, frame.pos);
      body.put(3, b, world, count, frame.quat.w);
      body.vector(b, world, count, frame.quat.v, 4);
    }
    for (int64_t i = 0; i < attached.n; ++i) {
      const Frame<T> frame = compose<T>(frames[size_t(carrier->column[size_t(i)])], local.frame(i, world, count));
      attached.vector(i, world, count, frame.pos);
      attached.matrix(i, world, count, frame.quat, 3);
    }
  }
};

}  // namespace
