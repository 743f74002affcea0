// Newton's method of newton.py for a group of worlds.

#pragma once

#include <cstdint>
#include <cstring>

#include "factors.h"
#include "line_search.h"
#include "mass.h"

namespace {

template <class T>
struct Problem {
  const System* system;
  Factors<T> factors;
  const T *mass, *force, *qacc_smooth, *qacc_warmstart;
  T *qacc, *qfrc_constraint;
  int32_t* niter;
  int64_t worlds;
};

template <class T>
struct Work {
  Vec<T> *mass, *sum, *hessian, *inverse, *panel, *force, *qacc, *smooth, *momentum, *grad, *search, *search_momentum;
  Vec<T>* sparse;  // M as it comes
  Arms<T> arms;
  Rows<T> rows;
};

// M (nC, B) of a group as it comes, and as tiles padded with an identity.
template <class T>
void pack_mass(const System& s, const T* mass, int64_t worlds, int64_t world, int count, Work<T>& w) {
  const int nb = tiles(s.nv);
  std::memset(w.mass, 0, matrix_size(nb) * sizeof(Vec<T>));
  for (int64_t i = s.nv; i < int64_t(nb) * kTile; ++i) {
    tile(w.mass, int(i / kTile), int(i / kTile))[(i % kTile) * (kTile + 1)] = fill<T>(T(1));
  }
  for (int64_t i = 0; i < s.nv; ++i) {
    for (int64_t e = s.M_rowadr[i]; e < s.M_rowadr[i] + s.M_rownnz[i]; ++e) {
      const int64_t j = s.M_colind[e];
      const Vec<T> x = load<T>(mass + e * worlds + world, count);
      w.sparse[e] = x;
      Vec<T>* block = tile(w.mass, int(i / kTile), int(j / kTile));
      block[(j % kTile) * kTile + i % kTile] = x;
      if (i / kTile == j / kTile) block[(i % kTile) * kTile + j % kTile] = x;
    }
  }
}

template <class T>
void gradient(const Work<T>& w, int nb) {
  const Rows<T>& rows = w.rows;
  for (int i = 0; i < nb * kTile; ++i) w.grad[i] = w.momentum[i] - w.force[i];
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> pull = rows.weight[k] * negative<T>(rows.residual[k]);
    if (any<T>(pull != 0)) add_multiple<T>(rows, k, pull, w.grad, nb);
  }
}

template <class T>
Vec<T> row_cost(const Rows<T>& rows, const Vec<T>* product) {
  Vec<T> sum = {};
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> below = negative<T>(product[k]);
    sum += rows.weight[k] * below * below;
  }
  return sum;
}

// The cheaper of the two starting points into qacc, momentum and residual.
template <class T>
void choose_start(const Problem<T>& p, Work<T>& w, int64_t world, int count) {
  const System& s = *p.system;
  const int nb = tiles(s.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_vector<T>(p.qacc_smooth + world, s.nv, p.worlds, count, w.smooth, padded);
  load_vector<T>(p.qacc_warmstart + world, s.nv, p.worlds, count, w.qacc, padded);
  row_products<T>(rows, w.qacc, rows.residual, nb);
  row_products<T>(rows, w.smooth, rows.rate, nb);
  for (int k = 0; k < rows.count; ++k) {
    rows.residual[k] -= rows.aref[k];
    rows.rate[k] -= rows.aref[k];
  }
  multiply_sparse<T>(s, w.sparse, w.qacc, w.momentum, padded);
  Vec<T> warm = row_cost<T>(rows, rows.residual);
  for (int i = 0; i < padded; ++i) warm += (w.momentum[i] - w.force[i]) * (w.qacc[i] - w.smooth[i]);
  const Mask<T> smooth = (warm > row_cost<T>(rows, rows.rate)) | ~rows.constrained;
  if (!any<T>(smooth)) return;
  multiply_sparse<T>(s, w.sparse, w.smooth, w.search_momentum, padded);
  for (int i = 0; i < padded; ++i) {
    w.qacc[i] = smooth ? w.smooth[i] : w.qacc[i];
    w.momentum[i] = smooth ? w.search_momentum[i] : w.momentum[i];
  }
  for (int k = 0; k < rows.count; ++k) rows.residual[k] = smooth ? rows.rate[k] : rows.residual[k];
}

// Worlds in which the gradient and the duality gap 1/2 g' M^-1 g prove that the start is good enough.
template <class T>
Mask<T> certified(Work<T>& w, Vec<T> scale, Mask<T> done, T tolerance, int nb) {
  const int padded = nb * kTile;
  const Mask<T> flat = scale * square_root<T>(dot<T>(w.grad, w.grad, padded)) < tolerance;
  if (!any<T>(flat & ~done)) return Mask<T>{};
  std::memcpy(w.hessian, w.mass, matrix_size(nb) * sizeof(Vec<T>));
  factorize<T>(w.hessian, w.inverse, w.panel, nb);
  std::memcpy(w.search, w.grad, padded * sizeof(Vec<T>));
  substitute<T>(w.hessian, w.inverse, w.search, nb);
  return flat & (scale * T(0.5) * dot<T>(w.grad, w.search, padded) < tolerance);
}

// The solve of a group whose M and rows are in the workspace.
template <class T>
Mask<T> iterate(const Problem<T>& p, Work<T>& w, int64_t world, int count) {
  const System& s = *p.system;
  const int nb = tiles(s.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_vector<T>(p.force + world, s.nv, p.worlds, count, w.force, padded);
  Vec<T> trace = {};
  for (int64_t i = 0; i < s.nv; ++i) trace += w.sparse[s.M_rowadr[i] + s.M_rownnz[i] - 1];
  const Vec<T> scale = T(1) / floor_at<T>(trace, kMinVal<T>);
  const T tolerance = T(s.tolerance);

  choose_start<T>(p, w, world, count);
  gradient<T>(w, nb);
  Mask<T> niter = {};
  Mask<T> done = ~rows.constrained;
  done |= certified<T>(w, scale, done, tolerance, nb);
  // The Hessian M + J' diag(stiffness) J is kept beside its factor: from one iteration to the next few rows change.
  std::memcpy(w.sum, w.mass, matrix_size(nb) * sizeof(Vec<T>));
  for (int k = 0; k < rows.count; ++k) rows.stiffness[k] = Vec<T>{};
  for (int step = 0; step < s.iterations && any<T>(~done); ++step) {
    Mask<T> left = {};
    for (int k = 0; k < rows.count; ++k) {
      const Vec<T> stiffness = rows.residual[k] < 0 ? rows.weight[k] : Vec<T>{};
      rows.rate[k] = done ? Vec<T>{} : stiffness - rows.stiffness[k];
      rows.stiffness[k] += rows.rate[k];
      left |= rows.rate[k] < 0;
    }
    if (sizeof(T) == 4 && any<T>(left)) {  // taking a stiff row out again leaves its rounding, too much in float32
      std::memcpy(w.sum, w.mass, matrix_size(nb) * sizeof(Vec<T>));
      for (int k = 0; k < rows.count; ++k) rows.rate[k] = rows.stiffness[k];
    }
    add_rows<T>(rows, rows.rate, w.sum, nb);
    std::memcpy(w.hessian, w.sum, matrix_size(nb) * sizeof(Vec<T>));
    factorize<T>(w.hessian, w.inverse, w.panel, nb);
    for (int i = 0; i < padded; ++i) w.search[i] = -w.grad[i];
    substitute<T>(w.hessian, w.inverse, w.search, nb);
    if (step > 0) {
      const Vec<T> decrement = T(-0.5) * dot<T>(w.grad, w.search, padded);
      done |= ~(scale * decrement >= tolerance);
      if (!any<T>(~done)) break;
    }

    multiply_sparse<T>(s, w.sparse, w.search, w.search_momentum, padded);
    row_products<T>(rows, w.search, rows.rate, nb);
    Line<T> line = {&rows, {}, T(0.5) * dot<T>(w.search, w.search_momentum, padded)};
    for (int i = 0; i < padded; ++i) line.linear += w.search[i] * (w.momentum[i] - w.force[i]);
    const Vec<T> length = square_root<T>(dot<T>(w.search, w.search, padded));
    const Vec<T> slope_tolerance = T(s.tolerance * s.ls_tolerance) * length / scale;
    const Point<T> found = search_line<T>(line, slope_tolerance, done | (length < kMinVal<T>), int(s.ls_iterations));

    done |= found.alpha == 0;
    const Vec<T> alpha = done ? Vec<T>{} : found.alpha;
    for (int i = 0; i < padded; ++i) {
      w.qacc[i] = done ? w.qacc[i] : w.qacc[i] + alpha * w.search[i];
      w.momentum[i] = done ? w.momentum[i] : w.momentum[i] + alpha * w.search_momentum[i];
    }
    for (int k = 0; k < rows.count; ++k) {
      rows.residual[k] = done ? rows.residual[k] : rows.residual[k] + alpha * rows.rate[k];
    }
    gradient<T>(w, nb);
    niter -= ~done;
    const Vec<T> improvement = -scale * found.cost;
    const Vec<T> slope = scale * square_root<T>(dot<T>(w.grad, w.grad, padded));
    done |= ((improvement > 0) & (improvement < tolerance)) | ~(slope >= tolerance);
  }
  return niter;
}

// The joint forces of the group's rows at w.qacc, to w.grad.
template <class T>
void forces(const Problem<T>& p, Work<T>& w) {
  const int nb = tiles(p.system->nv);
  Rows<T>& rows = w.rows;
  for (int i = 0; i < nb * kTile; ++i) w.grad[i] = Vec<T>{};
  row_products<T>(rows, w.qacc, rows.rate, nb);
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> pull = -rows.weight[k] * negative<T>(rows.rate[k] - rows.aref[k]);
    if (any<T>(pull != 0)) add_multiple<T>(rows, k, pull, w.grad, nb);
  }
}

template <class T>
void solve_turn(const Problem<T>& p, Work<T>* works, const Turn& turn) {
  const System& s = *p.system;
  Rows<T>* rows[kTurn];
  for (int g = 0; g < turn.groups; ++g) rows[g] = &works[g].rows;
  pack_factored<T>(p.factors, turn, rows, works[0].arms, works[0].search);
  for (int g = 0; g < turn.groups; ++g) {
    Work<T>& w = works[g];
    const int64_t world = turn.world + g * kLanes<T>;
    const int count = count_of<T>(turn, g);
    Mask<T> niter = {};
    if (rows[g]->count) {
      pack_mass<T>(s, p.mass, p.worlds, world, count, w);
      niter = iterate<T>(p, w, world, count);
    } else {
      load_vector<T>(p.qacc_smooth + world, s.nv, p.worlds, count, w.qacc, int(s.nv));
    }
    forces<T>(p, w);
    store_vector<T>(p.qacc + world, w.qacc, s.nv, p.worlds, count);
    store_vector<T>(p.qfrc_constraint + world, w.grad, s.nv, p.worlds, count);
    for (int lane = 0; lane < count; ++lane) p.niter[world + lane] = int32_t(niter[lane]);
  }
}

}  // namespace
