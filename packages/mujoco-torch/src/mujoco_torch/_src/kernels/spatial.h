// Vectors, quaternions and frames of a group of worlds, and how they are read and written.

#pragma once

#include "simd.h"
#include "torch_api.h"

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

// Items (k, n, B) or (n, B), or with B = 1 such as serve all worlds; some worlds of them. Their rows may lie anywhere.
template <class T>
struct Items {
  const T* data;
  int64_t component, item;  // steps
  bool shared;

  explicit Items(const Input& x)
      : data(x.as<T>()), component(x.strides.size() > 2 ? x.strides[0] : 0), item(x.strides[x.strides.size() - 2]),
        shared(x.worlds() == 1) {}
  Vec<T> at(int64_t k, int64_t i, int64_t world, int count) const {
    const T* place = data + k * component + i * item;
    return shared ? fill<T>(*place) : load<T>(place + world, count);
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
inline Vector<T> operator-(const Vector<T>& a, const Vector<T>& b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}

template <class T>
inline Vec<T> dot(const Vector<T>& a, const Vector<T>& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z;
}

// Calls body(first world, number of worlds) for each group.
template <class T, class Body>
void for_groups(int64_t worlds, const Body& body) {
  const int64_t groups = (worlds + kLanes<T> - 1) / kLanes<T>;
  parallel(groups, 8, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t world = g * kLanes<T>, left = worlds - world;
      body(world, int(left < kLanes<T> ? left : kLanes<T>));
    }
  });
}

}  // namespace
