// What rows and elliptic cones cost, and their forces: penalty.py.
//
// `general` is false where all rows only push (limits, pyramids): then no bounds are read, and there are no cones.

#pragma once

#include "rows.h"

namespace {

constexpr int kConeLine = 6;  // N and its rate, |U|^2, U . rate, |rate|^2, and |p|^2 at the start

// The residual of row k within the bounds of its force.
template <class T, bool general>
inline Vec<T> within(const Rows<T>& rows, int k, Vec<T> residual) {
  if (!general) return negative<T>(residual);
  const Vec<T> above = residual < rows.low[k] ? rows.low[k] : residual;
  return above > rows.high[k] ? rows.high[k] : above;
}

template <class T, bool general>
inline Mask<T> is_stiff(const Rows<T>& rows, int k, Vec<T> residual) {
  if (!general) return residual < 0;
  return (residual > rows.low[k]) & (residual < rows.high[k]);
}

template <class T>
inline int cones(const Rows<T>& rows) {
  return (rows.count - rows.plain) / rows.axes;
}

// Where the scaled residual (N, U) of a cone is, T = |U|.
template <class T>
struct Zone {
  Mask<T> bottom, middle;
  Vec<T> slip;  // (N - mu T) / (1 + mu^2)

  Zone(Vec<T> N, Vec<T> t, Vec<T> mu) {
    const Mask<T> top = mu * t <= N;
    bottom = ~top & (mu * N + t <= 0);
    middle = ~(top | bottom);
    slip = (N - mu * t) / (T(1) + mu * mu);
  }
};

// |U|, and one over it (over 1 where it is zero).
template <class T>
inline Vec<T> slide(const Rows<T>& rows, const Vec<T>* z, Vec<T>* inverse) {
  Vec<T> square = {};
  for (int j = 1; j < rows.axes; ++j) square += z[j] * z[j];
  const Vec<T> t = square_root<T>(square);
  *inverse = T(1) / (t > 0 ? t : fill<T>(1));
  return t;
}

// The vector p of a cone with scaled residual z.
template <class T>
inline void project(const Rows<T>& rows, int cone, const Vec<T>* z, Vec<T>* p) {
  Vec<T> inverse;
  const Vec<T> mu = rows.cone_mu[cone], t = slide<T>(rows, z, &inverse);
  const Zone<T> zone(z[0], t, mu);
  p[0] = zone.middle ? zone.slip : zone.bottom ? z[0] : Vec<T>{};
  const Vec<T> share = zone.middle ? -mu * zone.slip * inverse : zone.bottom ? fill<T>(1) : Vec<T>{};
  for (int j = 1; j < rows.axes; ++j) p[j] = share * z[j];
}

// x += J' D p: minus the joint forces of all rows at residuals.
template <class T, bool general>
void add_pull(const Rows<T>& rows, const Vec<T>* residual, Vec<T>* x, int nb) {
  for (int k = 0; k < rows.plain; ++k) {
    const Vec<T> pull = rows.weight[k] * within<T, general>(rows, k, residual[k]);
    if (any<T>(pull != 0)) add_multiple<T>(rows, k, pull, x, nb);
  }
  if (!general) return;
  for (int c = 0; c < cones<T>(rows); ++c) {
    const int first = rows.plain + c * rows.axes;
    Vec<T> p[kMaxAxes];
    project<T>(rows, c, residual + first, p);
    for (int j = 0; j < rows.axes; ++j) {
      const Vec<T> pull = rows.cone_weight[c] * p[j];
      if (any<T>(pull != 0)) add_multiple<T>(rows, first + j, pull, x, nb);
    }
  }
}

// Twice the cost of all rows at residuals.
template <class T, bool general>
Vec<T> row_cost(const Rows<T>& rows, const Vec<T>* residual) {
  Vec<T> sum = {};
  for (int k = 0; k < rows.plain; ++k) {
    const Vec<T> p = within<T, general>(rows, k, residual[k]);
    sum += general ? rows.weight[k] * p * (T(2) * residual[k] - p) : rows.weight[k] * p * p;
  }
  if (!general) return sum;
  for (int c = 0; c < cones<T>(rows); ++c) {
    Vec<T> p[kMaxAxes];
    project<T>(rows, c, residual + rows.plain + c * rows.axes, p);
    sum += rows.cone_weight[c] * dot<T>(p, p, rows.axes);
  }
  return sum;
}

// A += J' S J, with S the second derivative of the cost of cones: a row along the cone's side, and rows across it.
template <class T>
void add_cones(Rows<T>& rows, Vec<T>* target, const uint64_t* shape, int nb) {
  const size_t stride = size_t(nb) * kTile;
  Vec<T>* const weight = rows.rate + rows.plain;
  for (int c = 0; c < cones<T>(rows); ++c) {
    const int first = rows.plain + c * rows.axes;
    const Vec<T>*z = rows.residual + first, *jac = rows.jac + size_t(first) * stride;
    Vec<T>* bent = rows.bent + size_t(c) * rows.axes * stride;
    Vec<T> inverse, unit[kMaxAxes], one = fill<T>(1);
    const Vec<T> mu = rows.cone_mu[c], t = slide<T>(rows, z, &inverse);
    const Zone<T> zone(z[0], t, mu);
    for (int j = 1; j < rows.axes; ++j) unit[j] = zone.middle ? z[j] * inverse : Vec<T>{};
    const Vec<T> press = zone.middle ? one / (one + mu * mu) : zone.bottom ? one : Vec<T>{};
    const Vec<T> bend = zone.middle ? -mu * zone.slip * inverse : zone.bottom ? one : Vec<T>{};
    for (int j = 0; j < rows.axes; ++j) weight[c * rows.axes + j] = rows.cone_weight[c] * (j ? bend : press);
    for (size_t e = 0; e < stride; ++e) {
      if (!has_block(rows.blocks[first], int(e / kTile))) continue;
      Vec<T> along = {};
      for (int j = 1; j < rows.axes; ++j) along += unit[j] * jac[size_t(j) * stride + e];
      bent[e] = jac[e] - mu * along;
      for (int j = 1; j < rows.axes; ++j) bent[size_t(j) * stride + e] = jac[size_t(j) * stride + e] - unit[j] * along;
    }
  }
  Rows<T> made = rows;
  made.jac = rows.bent;
  made.blocks = rows.blocks + rows.plain;
  made.count = rows.count - rows.plain;
  add_rows<T>(made, weight, target, shape, nb);
}

// Before a line search: what the cost of each cone along the line is made of.
template <class T>
void prepare_cones(const Rows<T>& rows) {
  for (int c = 0; c < cones<T>(rows); ++c) {
    const Vec<T>*z = rows.residual + rows.plain + c * rows.axes, *v = rows.rate + rows.plain + c * rows.axes;
    Vec<T>*line = rows.cone_line + c * kConeLine, p[kMaxAxes];
    project<T>(rows, c, z, p);
    line[0] = z[0];
    line[1] = v[0];
    line[2] = dot<T>(z + 1, z + 1, rows.axes - 1);
    line[3] = dot<T>(z + 1, v + 1, rows.axes - 1);
    line[4] = dot<T>(v + 1, v + 1, rows.axes - 1);
    line[5] = dot<T>(p, p, rows.axes);
  }
}

// Adds a cone's cost above the start's (twice), slope and curvature after a step.
template <class T>
inline void evaluate_cone(const Rows<T>& rows, int c, Vec<T> alpha, Vec<T>* cost, Vec<T>* slope, Vec<T>* curvature) {
  const Vec<T>* line = rows.cone_line + c * kConeLine;
  const Vec<T> weight = rows.cone_weight[c], mu = rows.cone_mu[c];
  const Vec<T> N = line[0] + alpha * line[1], along = line[3] + alpha * line[4];
  const Vec<T> square = floor_at<T>(line[2] + alpha * (line[3] + along), T(0));
  const Vec<T> t = square_root<T>(square), inverse = T(1) / (t > 0 ? t : fill<T>(1));
  const Zone<T> zone(N, t, mu);
  const Vec<T> t1 = along * inverse, side = line[1] - mu * t1, more = T(1) + mu * mu;
  const Vec<T> bent = side * side / more - mu * zone.slip * floor_at<T>(line[4] - t1 * t1, T(0)) * inverse;
  const Vec<T> zero = {};
  *cost += weight * ((zone.middle ? zone.slip * zone.slip * more : zone.bottom ? N * N + square : zero) - line[5]);
  *slope += weight * (zone.middle ? zone.slip * side : zone.bottom ? N * line[1] + along : zero);
  *curvature += weight * (zone.middle ? bent : zone.bottom ? line[1] * line[1] + line[4] : zero);
}

}  // namespace
