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
inline const Piece& cone_piece(const Rows<T>& rows, int cone) {
  return rows.piece[rows.pieces - rows.cones + cone];
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
inline Vec<T> slide(const Vec<T>* z, int axes, Vec<T>* inverse) {
  Vec<T> square = {};
  for (int j = 1; j < axes; ++j) square += z[j] * z[j];
  const Vec<T> t = square_root<T>(square);
  *inverse = T(1) / (t > 0 ? t : fill<T>(1));
  return t;
}

// The vector p of a cone with scaled residual z.
template <class T>
inline void project(const Rows<T>& rows, int cone, const Vec<T>* z, Vec<T>* p) {
  const int axes = cone_piece<T>(rows, cone).axes;
  Vec<T> inverse;
  const Vec<T> mu = rows.cone_mu[cone], t = slide<T>(z, axes, &inverse);
  const Zone<T> zone(z[0], t, mu);
  p[0] = zone.middle ? zone.slip : zone.bottom ? z[0] : Vec<T>{};
  const Vec<T> share = zone.middle ? -mu * zone.slip * inverse : zone.bottom ? fill<T>(1) : Vec<T>{};
  for (int j = 1; j < axes; ++j) p[j] = share * z[j];
}

// Lists a piece whose rows of J pull, and says whether there is any pull.
template <class T>
inline bool set_pull(const Rows<T>& rows, int p, const Vec<T>* force) {
  const Piece& piece = rows.piece[p];
  Vec<T>* pull = rows.pull + piece.row;
  gather<T>(piece, force, pull);
  Mask<T> pulls = {};
  for (int a = 0; a < piece.axes; ++a) pulls |= pull[a] != 0;
  return any<T>(pulls);
}

// x = J' D p: minus the joint forces of all rows at their residuals.
template <class T, bool general>
void find_pull(const Rows<T>& rows, Vec<T>* x, int nb) {
  for (int i = 0; i < nb * kTile; ++i) x[i] = Vec<T>{};
  for (int k = 0; k < rows.singles; ++k) {
    x[rows.dof[k]] += rows.value[k] * (rows.weight[k] * within<T, general>(rows, k, rows.residual[k]));
  }
  int active = 0;
  const int first_cone = rows.pieces - rows.cones;
  for (int p = 0; p < rows.pieces; ++p) {
    const Piece& piece = rows.piece[p];
    Vec<T> force[2 * kMaxAxes];
    if (general && p >= first_cone) {
      project<T>(rows, p - first_cone, rows.residual + piece.slot, force);
      for (int a = 0; a < piece.axes; ++a) force[a] *= rows.cone_weight[p - first_cone];
    } else {
      for (int k = 0; k < piece.slots(); ++k) {
        const int slot = piece.slot + k;
        force[k] = rows.weight[slot] * within<T, general>(rows, slot, rows.residual[slot]);
      }
    }
    if (set_pull<T>(rows, p, force)) rows.active[active++] = p;
  }
  add_pulls<T>(rows, active, x, nb);
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
  for (int c = 0; c < rows.cones; ++c) {
    const Piece& piece = cone_piece<T>(rows, c);
    Vec<T> p[kMaxAxes];
    project<T>(rows, c, residual + piece.slot, p);
    sum += rows.cone_weight[c] * dot<T>(p, p, piece.axes);
  }
  return sum;
}

// The second derivatives of a cone's cost by its axes: stiff along the cone's side, and across it.
template <class T>
inline void couple_cone(const Rows<T>& rows, int cone) {
  const Piece& piece = cone_piece<T>(rows, cone);
  const Vec<T>* z = rows.residual + piece.slot;
  Vec<T>* coupling = rows.coupling + size_t(piece.row) * rows.axes;
  Vec<T> inverse, side[kMaxAxes], one = fill<T>(1), zero = {};
  const Vec<T> mu = rows.cone_mu[cone], weight = rows.cone_weight[cone], t = slide<T>(z, piece.axes, &inverse);
  const Zone<T> zone(z[0], t, mu);
  const Vec<T> press = weight * (zone.middle ? one / (one + mu * mu) : zone.bottom ? one : zero);
  const Vec<T> bend = weight * (zone.middle ? -mu * zone.slip * inverse : zone.bottom ? one : zero);
  const Vec<T> turned = zone.middle ? bend : zero;
  side[0] = one;
  for (int j = 1; j < piece.axes; ++j) side[j] = zone.middle ? -mu * z[j] * inverse : zero;
  for (int j = 0; j < piece.axes; ++j) {
    for (int k = 0; k < piece.axes; ++k) {
      Vec<T> sum = press * side[j] * side[k];
      if (j && k) sum -= turned * (z[j] * inverse) * (z[k] * inverse);
      if (j && j == k) sum += bend;
      coupling[j * piece.axes + k] = sum;
    }
  }
}

// Before a line search: what the cost of each cone along the line is made of.
template <class T>
void prepare_cones(const Rows<T>& rows) {
  for (int c = 0; c < rows.cones; ++c) {
    const Piece& piece = cone_piece<T>(rows, c);
    const Vec<T>*z = rows.residual + piece.slot, *v = rows.rate + piece.slot;
    Vec<T>*line = rows.cone_line + c * kConeLine, p[kMaxAxes];
    project<T>(rows, c, z, p);
    line[0] = z[0];
    line[1] = v[0];
    line[2] = dot<T>(z + 1, z + 1, piece.axes - 1);
    line[3] = dot<T>(z + 1, v + 1, piece.axes - 1);
    line[4] = dot<T>(v + 1, v + 1, piece.axes - 1);
    line[5] = dot<T>(p, p, piece.axes);
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
