// One world per SIMD lane: numbers a register wide, masks, and the worlds taken together.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
constexpr int kTile = 4;
constexpr int kTileSize = kTile * kTile;

template <class T>
struct Simd;
template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(kBytes)));
  typedef int64_t Mask __attribute__((vector_size(kBytes)));
};
template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(kBytes)));
  typedef int32_t Mask __attribute__((vector_size(kBytes)));
};

template <class T>
using Vec = typename Simd<T>::Vec;
template <class T>
using Mask = typename Simd<T>::Mask;

template <class T>
constexpr int kLanes = kBytes / int(sizeof(T));

template <class T>
inline Vec<T> fill(T value) {
  return Vec<T>{} + value;
}

// A bit for each lane.
template <class T>
inline uint32_t to_bits(Mask<T> mask) {
#if defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 8) return _mm512_movepi64_mask(reinterpret_cast<__m512i>(mask));
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX__) && !defined(__AVX512F__)
  if constexpr (sizeof(T) == 8) return uint32_t(_mm256_movemask_pd(reinterpret_cast<__m256d>(mask)));
  return uint32_t(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) bits |= uint32_t(mask[lane] & 1) << lane;
  return bits;
#endif
}

template <class T>
inline bool any(Mask<T> mask) {
  return to_bits<T>(mask) != 0;
}

template <class T>
inline Mask<T> first_lanes(int count) {
  Mask<T> mask = {};
  for (int lane = 0; lane < count; ++lane) mask[lane] = -1;
  return mask;
}

// Calls body(lane) for the lanes whose bit is set.
template <class Body>
inline void for_lanes(uint32_t bits, const Body& body) {
  for (; bits; bits &= bits - 1) body(__builtin_ctz(bits));
}

template <class T>
inline Vec<T> square_root(Vec<T> x) {
  for (int lane = 0; lane < kLanes<T>; ++lane) x[lane] = std::sqrt(x[lane]);
  return x;
}

template <class T>
inline Vec<T> absolute(Vec<T> x) {
  return x < 0 ? -x : x;
}

template <class T>
inline Vec<T> negative(Vec<T> x) {
  return x < 0 ? x : Vec<T>{};
}

template <class T>
inline Vec<T> floor_at(Vec<T> x, T least) {
  return x < least ? fill<T>(least) : x;
}

template <class T>
constexpr T kMinVal = T(1e-15);

// Makes the compiler hold x in a register. Without it the products below read each operand from memory 16 times per
// tile; assembling and factorising then took some 15 % longer (Zen 4, nv 27, float64).
template <class V>
inline void keep([[maybe_unused]] V& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
}

// acc += left right', a tile from two columns of a tile's height.
template <class V>
inline void add_outer(V* acc, const V* left, const V* right) {
  V l[kTile];
  for (int r = 0; r < kTile; ++r) keep(l[r] = left[r]);
  for (int c = 0; c < kTile; ++c) {
    V x = right[c];
    keep(x);
    for (int r = 0; r < kTile; ++r) acc[c * kTile + r] += l[r] * x;
  }
}

// Lanes beyond `count` repeat the first world, so that they hold valid numbers and finish with it.
template <class T>
inline Vec<T> load(const T* source, int count) {
  Vec<T> x;
  if (count == kLanes<T>) {
    std::memcpy(&x, source, sizeof x);
  } else {
    x = fill<T>(source[0]);
    for (int lane = 1; lane < count; ++lane) x[lane] = source[lane];
  }
  return x;
}

template <class T>
inline void store(T* target, Vec<T> x, int count) {
  if (count == kLanes<T>) {
    std::memcpy(target, &x, sizeof x);
  } else {
    for (int lane = 0; lane < count; ++lane) target[lane] = x[lane];
  }
}

// Numbers of a world are too far apart for the processor to guess the next one. Asked for in time they come at once.
template <class T>
inline void prefetch(const T* source) {
  __builtin_prefetch(source);
}

// Neighbouring groups that a thread takes together. In a large batch nearly every number of a world lies in a page of
// its own, and looking up the page costs as much as the number (humanoid, 4,096 worlds, float64, one thread: 7.2 us a
// world in turns of 1, 6.1 in turns of 4, 5.4 in turns of 8). Where a page holds a number of all worlds, turns of 1
// keep a group's workspace in the cache (256 worlds: 4.3 us in turns of 4, 4.15 in turns of 1).
constexpr int kTurn = 4;
constexpr int64_t kPage = 4096;

template <class T>
inline int64_t groups_of_turn(int64_t worlds) {
  return worlds * int64_t(sizeof(T)) > kPage ? kTurn : 1;
}

struct Turn {
  int64_t world;  // the first
  int groups;
  int last;  // worlds in the last group
};

template <class T>
inline int count_of(const Turn& turn, int group) {
  return group + 1 < turn.groups ? kLanes<T> : turn.last;
}

}  // namespace
