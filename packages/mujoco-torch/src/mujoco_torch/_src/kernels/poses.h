// Poses of bodies, joints and what is fixed to bodies, down the tree of bodies.

#pragma once

#include <vector>

#include "simd.h"
#include "structure.h"

namespace {

template <class T>
struct Vector {
  Vec<T> x, y, z;
};

template <class T>
struct Quaternion {
  Vec<T> w;
  Vector<T> v;
};

template <class T>
struct Frame {
  Vector<T> pos;
  Quaternion<T> quat;
};

template <class T>
inline Vector<T> operator+(const Vector<T>& a, const Vector<T>& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}

template <class T>
inline Vector<T> scaled(Vec<T> s, const Vector<T>& a) {
  return {s * a.x, s * a.y, s * a.z};
}

template <class T>
inline Vector<T> cross(const Vector<T>& a, const Vector<T>& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

template <class T>
inline Vector<T> rotate(const Quaternion<T>& q, const Vector<T>& v) {
  const Vector<T> t = scaled<T>(fill<T>(2), cross<T>(q.v, v));
  return v + scaled<T>(q.w, t) + cross<T>(q.v, t);
}

template <class T>
inline Quaternion<T> product(const Quaternion<T>& p, const Quaternion<T>& q) {
  const Vec<T> dot = p.v.x * q.v.x + p.v.y * q.v.y + p.v.z * q.v.z;
  return {p.w * q.w - dot, scaled<T>(p.w, q.v) + scaled<T>(q.w, p.v) + cross<T>(p.v, q.v)};
}

template <class T>
inline Frame<T> compose(const Frame<T>& a, const Frame<T>& b) {
  return {a.pos + rotate<T>(a.quat, b.pos), product<T>(a.quat, b.quat)};
}

// Zero becomes the identity.
template <class T>
inline Quaternion<T> normalized(const Quaternion<T>& q) {
  const Vec<T> square = q.w * q.w + q.v.x * q.v.x + q.v.y * q.v.y + q.v.z * q.v.z;
  const auto nonzero = square > kMinVal<T> * kMinVal<T>;
  const Vec<T> scale = nonzero ? T(1) / square_root<T>(nonzero ? square : fill<T>(1)) : Vec<T>{};
  return {nonzero ? q.w * scale : fill<T>(1), scaled<T>(scale, q.v)};
}

// Items (k, n, B), or (k, n, 1), which serve all worlds; some worlds of them.
template <class T>
struct Items {
  const T* data;
  int64_t n, worlds;

  Vec<T> at(int64_t component, int64_t item, int64_t world, int count) const {
    const T* place = data + (component * n + item) * worlds;
    return worlds == 1 ? fill<T>(*place) : load<T>(place + world, count);
  }
  Vector<T> vector(int64_t item, int64_t world, int count, int64_t first = 0) const {
    return {at(first, item, world, count), at(first + 1, item, world, count), at(first + 2, item, world, count)};
  }
  Frame<T> frame(int64_t item, int64_t world, int count) const {
    return {vector(item, world, count), {at(3, item, world, count), vector(item, world, count, 4)}};
  }
};

// Where results (k, n, B) go.
template <class T>
struct Results {
  T* data;
  int64_t n, worlds;

  void put(int64_t component, int64_t item, int64_t world, int count, Vec<T> x) const {
    store<T>(data + (component * n + item) * worlds + world, x, count);
  }
  void vector(int64_t item, int64_t world, int count, const Vector<T>& x, int64_t first = 0) const {
    put(first, item, world, count, x.x);
    put(first + 1, item, world, count, x.y);
    put(first + 2, item, world, count, x.z);
  }
  // Rows of the rotation matrix.
  void matrix(int64_t item, int64_t world, int count, const Quaternion<T>& q, int64_t first) const {
    const Vec<T> w = q.w, x = q.v.x, y = q.v.y, z = q.v.z;
    const Vec<T> ww = w * w, xx = x * x, yy = y * y, zz = z * z;
    vector(item, world, count, {ww + xx - yy - zz, T(2) * (x * y - w * z), T(2) * (x * z + w * y)}, first);
    vector(item, world, count, {T(2) * (x * y + w * z), ww - xx + yy - zz, T(2) * (y * z - w * x)}, first + 3);
    vector(item, world, count, {T(2) * (x * z - w * y), T(2) * (y * z + w * x), ww - xx - yy + zz}, first + 6);
  }
};

template <class T>
struct Poses {
  const Pattern *parent, *joint, *carrier;
  Items<T> resting, motion, slot_pos, slot_axis, slot_free, local;
  Results<T> body, axes, attached;

  // The joint of each slot (slot-major), -1 where there is none.
  std::vector<int64_t> joints() const {
    std::vector<int64_t> found(size_t(motion.n), -1);
    for (int64_t j = 0; j < joint->rows; ++j) found[size_t(joint->column[j])] = j;
    return found;
  }

  // A body relative to the world, from its parent's frame, and the anchors and axes of its joints.
  Frame<T> moved(Frame<T> frame, int64_t b, const std::vector<int64_t>& joint_of, int64_t world, int count) const {
    for (int64_t slot = b; slot < motion.n; slot += body.n) {
      const int64_t j = joint_of[size_t(slot)];
      if (j < 0) continue;
      const Frame<T> step = motion.frame(slot, world, count);
      const Vector<T> anchor = frame.pos + rotate<T>(frame.quat, slot_pos.vector(slot, world, count));
      axes.vector(j, world, count, anchor + scaled<T>(slot_free.at(0, slot, world, count), step.pos));
      axes.vector(j, world, count, rotate<T>(frame.quat, slot_axis.vector(slot, world, count)), 3);
      frame = compose<T>(frame, step);
    }
    return frame;
  }

  void run(std::vector<Frame<T>>& frames, const std::vector<int64_t>& joint_of, int64_t world, int count) const {
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
