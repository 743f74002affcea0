// Newton's method of newton.py for a group of worlds.

#pragma once

#include <cstdint>
#include <cstring>

#include "factors.h"
#include "line_search.h"

namespace {

// What Python passes: its Structure in __init__.py has the same fields in the same order.
template <class T>
struct Problem {
  const T *mass, *cdof, *wrench, *moved, *limit_axis;
  const int32_t *limit_dof, *limit_size;
  const T *weight, *aref, *force, *qacc_smooth, *qacc_warmstart;
  T *qacc, *efc_force, *qfrc_constraint;
  int32_t* niter;
  int64_t nv, limits, contacts, sides, worlds, fixed_axis, iterations, ls_iterations;
  double tolerance, ls_tolerance;
};

template <class T>
struct Work {
  Vec<T> *mass, *hessian, *inverse, *panel, *force, *qacc, *smooth, *momentum, *grad, *search, *search_momentum, *cdof;
  Rows<T> rows;
};

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
  const int nb = tiles(p.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_vector<T>(p.qacc_smooth + world, p.nv, p.worlds, count, w.smooth, padded);
  load_vector<T>(p.qacc_warmstart + world, p.nv, p.worlds, count, w.qacc, padded);
  row_products<T>(rows, w.qacc, rows.residual, nb);
  row_products<T>(rows, w.smooth, rows.rate, nb);
  for (int k = 0; k < rows.count; ++k) {
    rows.residual[k] -= rows.aref[k];
    rows.rate[k] -= rows.aref[k];
  }
  multiply<T>(w.mass, w.qacc, w.momentum, nb);
  Vec<T> warm = row_cost<T>(rows, rows.residual);
  for (int i = 0; i < padded; ++i) warm += (w.momentum[i] - w.force[i]) * (w.qacc[i] - w.smooth[i]);
  const Mask<T> smooth = (warm > row_cost<T>(rows, rows.rate)) | ~rows.constrained;
  if (!any<T>(smooth)) return;
  multiply<T>(w.mass, w.smooth, w.search_momentum, nb);
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
  const int nb = tiles(p.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_vector<T>(p.force + world, p.nv, p.worlds, count, w.force, padded);
  Vec<T> trace = {};
  for (int i = 0; i < p.nv; ++i) trace += tile(w.mass, i / kTile, i / kTile)[(i % kTile) * (kTile + 1)];
  const Vec<T> scale = T(1) / floor_at<T>(trace, kMinVal<T>);
  const T tolerance = T(p.tolerance);

  choose_start<T>(p, w, world, count);
  gradient<T>(w, nb);
  Mask<T> niter = {};
  Mask<T> done = ~rows.constrained;
  done |= certified<T>(w, scale, done, tolerance, nb);
  for (int step = 0; step < p.iterations && any<T>(~done); ++step) {
    for (int k = 0; k < rows.count; ++k) {
      rows.stiffness[k] = (rows.residual[k] < 0) & ~done ? rows.weight[k] : Vec<T>{};
    }
    assemble<T>(rows, w.mass, w.hessian, nb);
    factorize<T>(w.hessian, w.inverse, w.panel, nb);
    for (int i = 0; i < padded; ++i) w.search[i] = -w.grad[i];
    substitute<T>(w.hessian, w.inverse, w.search, nb);
    if (step > 0) {
      const Vec<T> decrement = T(-0.5) * dot<T>(w.grad, w.search, padded);
      done |= ~(scale * decrement >= tolerance);
      if (!any<T>(~done)) break;
    }

    multiply<T>(w.mass, w.search, w.search_momentum, nb);
    row_products<T>(rows, w.search, rows.rate, nb);
    Line<T> line = {&rows, {}, T(0.5) * dot<T>(w.search, w.search_momentum, padded)};
    for (int i = 0; i < padded; ++i) line.linear += w.search[i] * (w.momentum[i] - w.force[i]);
    const Vec<T> length = square_root<T>(dot<T>(w.search, w.search, padded));
    const Vec<T> slope_tolerance = T(p.tolerance * p.ls_tolerance) * length / scale;
    const Point<T> found = search_line<T>(line, slope_tolerance, done | (length < kMinVal<T>), int(p.ls_iterations));

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

// The forces at w.qacc of the group's rows, and their sum over rows to w.grad.
template <class T>
void forces(const Problem<T>& p, Work<T>& w, int64_t world) {
  const int nb = tiles(p.nv);
  Rows<T>& rows = w.rows;
  for (int i = 0; i < nb * kTile; ++i) w.grad[i] = Vec<T>{};
  row_products<T>(rows, w.qacc, rows.rate, nb);
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> residual = rows.rate[k] - rows.aref[k];
    rows.rate[k] = residual < 0 ? -rows.weight[k] * residual : Vec<T>{};
    if (any<T>(rows.rate[k] != 0)) add_multiple<T>(rows, k, rows.rate[k], w.grad, nb);
  }
  for (int e = 0; e < rows.entry_count; ++e) {
    const Entry entry = rows.entries[e];
    p.efc_force[entry.row * p.worlds + world + entry.lane] = rows.rate[entry.slot][entry.lane];
  }
}

template <class T>
void solve_turn(const Problem<T>& p, const Factors<T>& factors, Work<T>* works, const Turn& turn) {
  Rows<T>* rows[kTurn];
  Vec<T>*cdof[kTurn], *masses[kTurn];
  for (int g = 0; g < turn.groups; ++g) {
    rows[g] = &works[g].rows;
    cdof[g] = works[g].cdof;
  }
  pack_factored<T>(factors, p.weight, p.aref, p.efc_force, turn, rows, cdof);
  for (int g = 0; g < turn.groups; ++g) masses[g] = rows[g]->count ? works[g].mass : nullptr;
  pack_symmetric<T>(p.mass, p.nv, p.worlds, turn, masses);
  for (int g = 0; g < turn.groups; ++g) {
    Work<T>& w = works[g];
    const int64_t world = turn.world + g * kLanes<T>;
    const int count = count_of<T>(turn, g);
    Mask<T> niter = {};
    if (rows[g]->count) {
      niter = iterate<T>(p, w, world, count);
    } else {
      load_vector<T>(p.qacc_smooth + world, p.nv, p.worlds, count, w.qacc, int(p.nv));
    }
    forces<T>(p, w, world);
    store_vector<T>(p.qacc + world, w.qacc, p.nv, p.worlds, count);
    store_vector<T>(p.qfrc_constraint + world, w.grad, p.nv, p.worlds, count);
    for (int lane = 0; lane < count; ++lane) p.niter[world + lane] = int32_t(niter[lane]);
  }
}

}  // namespace
