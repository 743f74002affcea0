// Newton's method and conjugate gradients of newton.py for a group of worlds.

#pragma once

#include <cstdint>
#include <cstring>

#include "factors.h"
#include "line_search.h"
#include "mass.h"

namespace {

// Of a part of a system.
template <class T>
struct Problem {
  Factors<T> factors;
  const T *mass, *force, *qacc_smooth, *qacc_warmstart;
  T *qacc, *qfrc_constraint;
  int32_t* niter;

  Problem of(const Part& part) const {
    Problem p = *this;
    p.factors = factors.of(part);
    return p;
  }
};

template <class T>
struct Work {
  Vec<T>* sum;      // M + J' S J
  Vec<T>* hessian;  // its factor
  Vec<T>*inverse, *panel, *force, *qacc, *smooth, *momentum, *pull, *grad, *search, *search_momentum;
  Vec<T>*solved, *old_grad, *old_solved;  // M^-1 grad; both before a step of conjugate gradients
  Vec<T>* sparse;   // M as it comes
  Vec<T>* cdof;     // the motion axes (6 numbers a dof)
  uint64_t* shape;  // of sum and hessian, with the hessian's fill-in
  int* below;       // scratch of factorize()
  Rows<T> rows;
};

// Where H = M + J' S J of a group may be other than zero, whatever rows are stiff.
template <class T>
void find_shape(const System& s, Work<T>& w) {
  const int nb = tiles(s.nv);
  std::copy(s.mass_shape.begin(), s.mass_shape.end(), w.shape);
  uint64_t last = 0;
  for (int e = 0; e < w.rows.pieces * kLanes<T>; ++e) {
    if (w.rows.owner[e] < 0) continue;
    const uint64_t blocks = s.blocks[size_t(w.rows.owner[e])];
    if (blocks != last) add_blocks(w.shape, blocks, nb);
    last = blocks;
  }
  fill_in(w.shape, nb);
}

// M of a group as tiles, padded with an identity, to w.sum.
template <class T>
void place_mass(const System& s, Work<T>& w) {
  const int nb = tiles(s.nv);
  clear_tiles(w.sum, w.shape, nb);
  for (int64_t i = s.nv; i < int64_t(nb) * kTile; ++i) w.sum[element(i, i)] = fill<T>(T(1));
  for (size_t e = 0; e < s.place.size(); ++e) w.sum[s.place[e]] = w.sparse[e];
}

template <class T, bool general>
void gradient(Work<T>& w, int nb) {
  find_pull<T, general>(w.rows, w.pull, nb);
  for (int i = 0; i < nb * kTile; ++i) w.grad[i] = w.momentum[i] - w.force[i] + w.pull[i];
}

// The cheaper of the two starting points into qacc, momentum and residual.
template <class T, bool general>
void choose_start(const Problem<T>& p, Work<T>& w, int64_t world, int count) {
  const System& s = *p.factors.system;
  const int nb = tiles(s.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_dofs<T>(p.factors, p.qacc_smooth + world, count, w.smooth, padded);
  load_dofs<T>(p.factors, p.qacc_warmstart + world, count, w.qacc, padded);
  slot_products<T>(rows, w.qacc, rows.residual, nb);
  slot_products<T>(rows, w.smooth, rows.rate, nb);
  for (int k = 0; k < rows.count; ++k) {
    rows.residual[k] -= rows.aref[k];
    rows.rate[k] -= rows.aref[k];
  }
  multiply_sparse<T>(s, w.sparse, w.qacc, w.momentum, padded);
  Vec<T> warm = row_cost<T, general>(rows, rows.residual);
  for (int i = 0; i < padded; ++i) warm += (w.momentum[i] - w.force[i]) * (w.qacc[i] - w.smooth[i]);
  const Mask<T> smooth = (warm > row_cost<T, general>(rows, rows.rate)) | ~rows.constrained;
  if (!any<T>(smooth)) return;
  multiply_sparse<T>(s, w.sparse, w.smooth, w.search_momentum, padded);
  for (int i = 0; i < padded; ++i) {
    w.qacc[i] = smooth ? w.smooth[i] : w.qacc[i];
    w.momentum[i] = smooth ? w.search_momentum[i] : w.momentum[i];
  }
  for (int k = 0; k < rows.count; ++k) rows.residual[k] = smooth ? rows.rate[k] : rows.residual[k];
}

template <class T>
constexpr T kHagerZhang = T(0.01);

// Adds to w.sum the first `kept` of the active pieces; to w.hessian goes the factor of that and the others added.
template <class T>
void factorize(Work<T>& w, int kept, int active, int nb) {
  factorize<T>(w.sum, w.hessian, w.inverse, w.panel, w.below, w.shape, nb, Change<T>{&w.rows, kept, active, nb});
}

// M^-1 grad to w.solved, with the factor at hand.
template <class T>
void solve_mass(Work<T>& w, int nb) {
  std::memcpy(w.solved, w.grad, nb * kTile * sizeof(Vec<T>));
  substitute<T>(w.hessian, w.inverse, w.solved, w.shape, nb);
}

// Worlds in which the gradient and the duality gap 1/2 g' M^-1 g prove that the start is good enough; M is in w.sum.
template <class T>
Mask<T> certified(Work<T>& w, Vec<T> scale, Mask<T> done, T tolerance, int nb) {
  const int padded = nb * kTile;
  const Mask<T> flat = scale * square_root<T>(dot<T>(w.grad, w.grad, padded)) < tolerance;
  if (!any<T>(flat & ~done)) return Mask<T>{};
  factorize<T>(w, 0, 0, nb);
  solve_mass<T>(w, nb);
  return flat & (scale * T(0.5) * dot<T>(w.grad, w.solved, padded) < tolerance);
}

// Minus H^-1 times the gradient. H is kept beside its factor: from one iteration to the next few rows change.
template <class T, bool general>
void newton_direction(const System& s, Work<T>& w, Mask<T> done, int nb) {
  Rows<T>& rows = w.rows;
  Mask<T> left = {};
  for (int k = 0; k < rows.plain; ++k) {
    const Vec<T> stiffness = is_stiff<T, general>(rows, k, rows.residual[k]) ? rows.weight[k] : Vec<T>{};
    rows.rate[k] = done ? Vec<T>{} : stiffness - rows.stiffness[k];
    rows.stiffness[k] += rows.rate[k];
    left |= rows.rate[k] < 0;
  }
  if (sizeof(T) == 4 && any<T>(left)) {  // taking a stiff row out again leaves its rounding, too much in float32
    place_mass<T>(s, w);
    for (int k = 0; k < rows.plain; ++k) rows.rate[k] = rows.stiffness[k];
  }
  const int kept = list_changes<T>(rows, rows.rate, w.sum);
  int active = kept;
  for (int c = 0; general && c < rows.cones; ++c) {
    couple_cone<T>(rows, c);
    rows.active[active++] = rows.pieces - rows.cones + c;
  }
  factorize<T>(w, kept, active, nb);
  for (int i = 0; i < nb * kTile; ++i) w.search[i] = -w.grad[i];
  substitute<T>(w.hessian, w.inverse, w.search, w.shape, nb);
}

// The next direction of conjugate gradients, by Hager and Zhang's formula: newton.py, _conjugate_direction.
template <class T>
void conjugate_direction(Work<T>& w, int nb) {
  const int padded = nb * kTile;
  Vec<T> along = {}, bend = {}, along_new = {}, ahead = {};
  std::memcpy(w.old_solved, w.solved, padded * sizeof(Vec<T>));
  solve_mass<T>(w, nb);
  for (int i = 0; i < padded; ++i) {
    const Vec<T> change = w.grad[i] - w.old_grad[i], change_solved = w.solved[i] - w.old_solved[i];
    along += w.search[i] * change;
    bend += change * change_solved;
    ahead += change_solved * w.grad[i];
    along_new += w.search[i] * w.grad[i];
  }
  const Vec<T> safe = absolute<T>(along) < kMinVal<T> ? fill<T>(kMinVal<T>) : along;
  const Vec<T> length = square_root<T>(dot<T>(w.search, w.search, padded));
  const Vec<T> steep = square_root<T>(dot<T>(w.old_grad, w.old_grad, padded));
  const Vec<T> least = T(-1) / floor_at<T>(length * (steep > kHagerZhang<T> ? fill<T>(kHagerZhang<T>) : steep), kMinVal<T>);
  Vec<T> beta = (ahead - T(2) * bend / safe * along_new) / safe;
  beta = beta < least ? least : beta;
  for (int i = 0; i < padded; ++i) w.search[i] = beta * w.search[i] - w.solved[i];
}

// The solve of a group whose M and rows are in the workspace.
template <class T, bool general>
Mask<T> iterate(const Problem<T>& p, Work<T>& w, int64_t world, int count) {
  const System& s = *p.factors.system;
  const int nb = tiles(s.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_dofs<T>(p.factors, p.force + world, count, w.force, padded);
  Vec<T> trace = {};
  for (int64_t i = 0; i < s.nv; ++i) trace += w.sparse[s.M_rowadr[i] + s.M_rownnz[i] - 1];
  const Vec<T> scale = T(1) / floor_at<T>(trace, kMinVal<T>);
  const T tolerance = T(s.tolerance);

  choose_start<T, general>(p, w, world, count);
  gradient<T, general>(w, nb);
  Mask<T> niter = {};
  Mask<T> done = ~rows.constrained;
  done |= certified<T>(w, scale, done, tolerance, nb);
  const bool newton = !general || s.solver == kNewton;
  if (newton) {
    for (int k = 0; k < rows.plain; ++k) rows.stiffness[k] = Vec<T>{};
  } else if (any<T>(~done)) {
    factorize<T>(w, 0, 0, nb);
    solve_mass<T>(w, nb);
    for (int i = 0; i < padded; ++i) w.search[i] = -w.solved[i];
  }
  for (int step = 0; step < s.iterations && any<T>(~done); ++step) {
    if (newton) newton_direction<T, general>(s, w, done, nb);
    if (newton && step > 0) {
      const Vec<T> decrement = T(-0.5) * dot<T>(w.grad, w.search, padded);
      done |= ~(scale * decrement >= tolerance);
      if (!any<T>(~done)) break;
    }

    multiply_sparse<T>(s, w.sparse, w.search, w.search_momentum, padded);
    slot_products<T>(rows, w.search, rows.rate, nb);
    Line<T> line = {&rows, {}, T(0.5) * dot<T>(w.search, w.search_momentum, padded)};
    for (int i = 0; i < padded; ++i) line.linear += w.search[i] * (w.momentum[i] - w.force[i]);
    const Vec<T> length = square_root<T>(dot<T>(w.search, w.search, padded));
    const Vec<T> slope_tolerance = T(s.tolerance * s.ls_tolerance) * length / scale;
    const Point<T> found = search_line<T, general>(line, slope_tolerance, done | (length < kMinVal<T>), int(s.ls_iterations));

    done |= found.alpha == 0;
    const Vec<T> alpha = done ? Vec<T>{} : found.alpha;
    for (int i = 0; i < padded; ++i) {
      w.qacc[i] = done ? w.qacc[i] : w.qacc[i] + alpha * w.search[i];
      w.momentum[i] = done ? w.momentum[i] : w.momentum[i] + alpha * w.search_momentum[i];
    }
    for (int k = 0; k < rows.count; ++k) {
      rows.residual[k] = done ? rows.residual[k] : rows.residual[k] + alpha * rows.rate[k];
    }
    if (!newton) std::memcpy(w.old_grad, w.grad, padded * sizeof(Vec<T>));
    gradient<T, general>(w, nb);
    niter -= ~done;
    const Vec<T> improvement = -scale * found.cost;
    const Vec<T> slope = scale * square_root<T>(dot<T>(w.grad, w.grad, padded));
    done |= ((improvement > 0) & (improvement < tolerance)) | ~(slope >= tolerance);
    if (!newton && any<T>(~done)) conjugate_direction<T>(w, nb);
  }
  return niter;
}

// The rows of M of the dofs of a part.
template <class T>
void load_mass(const Factors<T>& f, const T* source, int count, Vec<T>* mass) {
  const System& s = *f.system;
  for (int64_t i = 0; i < s.nv; ++i) {
    const T* row = source + f.whole->M_rowadr[size_t(f.dof_at(i))] * f.worlds;
    for (int64_t e = 0; e < s.M_rownnz[size_t(i)]; ++e) {
      mass[s.M_rowadr[size_t(i)] + e] = load<T>(row + e * f.worlds, count);
    }
  }
}

// The solve of a part, whose iterations count if they are more than those of the parts before.
template <class T, bool general>
void solve_turn(const Problem<T>& p, Work<T>* works, const Turn& turn) {
  const System& s = *p.factors.system;
  const int padded = tiles(s.nv) * kTile;
  Rows<T>* rows[kTurn];
  for (int g = 0; g < turn.groups; ++g) rows[g] = &works[g].rows;
  pack_factored<T>(p.factors, turn, rows, works[0].cdof, works[0].search);
  for (int g = 0; g < turn.groups; ++g) {
    Work<T>& w = works[g];
    const int64_t world = turn.world + g * kLanes<T>;
    const int count = count_of<T>(turn, g);
    Mask<T> niter = {};
    if (rows[g]->count) {
      find_shape<T>(s, w);
      load_mass<T>(p.factors, p.mass + world, count, w.sparse);
      place_mass<T>(s, w);
      niter = iterate<T, general>(p, w, world, count);
    } else {
      load_dofs<T>(p.factors, p.qacc_smooth + world, count, w.qacc, int(s.nv));
      for (int i = 0; i < padded; ++i) w.pull[i] = Vec<T>{};
    }
    for (int i = 0; i < padded; ++i) w.pull[i] = -w.pull[i];
    store_dofs<T>(p.factors, p.qacc + world, w.qacc, count);
    store_dofs<T>(p.factors, p.qfrc_constraint + world, w.pull, count);
    for (int lane = 0; lane < count; ++lane) {
      p.niter[world + lane] = std::max(p.niter[world + lane], int32_t(niter[lane]));
    }
  }
}

}  // namespace
