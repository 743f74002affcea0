// Linear algebra and the constraint solver for many small worlds, one world per SIMD lane.
//
// Tensors have the world as their last dimension, of stride 1. A group is as many worlds as a register holds. Its data
// is copied to a compact workspace, where every number is a register wide ("Vec"), so the code below reads as if for one
// world; masks keep the worlds of a group apart where their paths differ. The algorithm is that of newton.py.
//
// Matrices are lower triangles of 4x4 tiles: tile (I, J) holds 16 Vec, element (r, c) at 4 c + r. Sizes are padded to
// whole tiles with an identity, which leaves every result as it is. Plain C interface at the end of the file.

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

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

template <class T>
inline bool any(Mask<T> mask) {
  int64_t bits = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) bits |= mask[lane];
  return bits != 0;
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

// ---- tiled lower-triangular matrices

inline int tiles(int64_t n) { return int((n + kTile - 1) / kTile); }

template <class V>
inline V* tile(V* matrix, int i, int j) {
  return matrix + (size_t(i) * (i + 1) / 2 + j) * kTileSize;
}

inline size_t matrix_size(int nb) { return size_t(nb) * (nb + 1) / 2 * kTileSize; }

// Lower triangle of a symmetric (n, n, B) tensor into tiles; the diagonal tiles become full.
template <class T>
void pack_symmetric(const T* source, int64_t n, int64_t worlds, int count, Vec<T>* matrix) {
  const int nb = tiles(n);
  for (int64_t i = 0; i < int64_t(nb) * kTile; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      Vec<T> x = i < n ? load<T>(source + (i * n + j) * worlds, count) : fill<T>(T(i == j));
      const int bi = int(i / kTile), bj = int(j / kTile), r = int(i % kTile), c = int(j % kTile);
      tile(matrix, bi, bj)[c * kTile + r] = x;
      if (bi == bj) tile(matrix, bi, bj)[r * kTile + c] = x;
    }
  }
}

// In place, A to its Cholesky factor; `inverse` gets the reciprocals of the factor's diagonal.
template <class T>
void factorize(Vec<T>* matrix, Vec<T>* inverse, int nb) {
  for (int k = 0; k < nb; ++k) {
    Vec<T>* diagonal = tile(matrix, k, k);
    Vec<T>* scale = inverse + k * kTile;
    for (int i = k; i < nb; ++i) {
      Vec<T>* target = tile(matrix, i, k);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = target[e];
      const Vec<T>* left = tile(matrix, i, 0);
      const Vec<T>* right = tile(matrix, k, 0);
      for (int p = 0; p < k * kTile; ++p, left += kTile, right += kTile) {
        for (int c = 0; c < kTile; ++c) {
          for (int r = 0; r < kTile; ++r) acc[c * kTile + r] -= left[r] * right[c];
        }
      }
      if (i == k) {
        for (int c = 0; c < kTile; ++c) {
          Vec<T> pivot = square_root<T>(floor_at<T>(acc[c * kTile + c], kMinVal<T>));
          acc[c * kTile + c] = pivot;
          scale[c] = T(1) / pivot;
          for (int r = c + 1; r < kTile; ++r) acc[c * kTile + r] *= scale[c];
          for (int d = c + 1; d < kTile; ++d) {
            for (int r = d; r < kTile; ++r) acc[d * kTile + r] -= acc[c * kTile + r] * acc[c * kTile + d];
          }
        }
      } else {
        for (int c = 0; c < kTile; ++c) {
          for (int p = 0; p < c; ++p) {
            for (int r = 0; r < kTile; ++r) acc[c * kTile + r] -= acc[p * kTile + r] * diagonal[p * kTile + c];
          }
          for (int r = 0; r < kTile; ++r) acc[c * kTile + r] *= scale[c];
        }
      }
      for (int e = 0; e < kTileSize; ++e) target[e] = acc[e];
    }
  }
}

// In place, x to the solution of L L' x = b.
template <class T>
void substitute(Vec<T>* factor, const Vec<T>* inverse, Vec<T>* x, int nb) {
  for (int i = 0; i < nb; ++i) {
    Vec<T>* target = x + i * kTile;
    Vec<T> acc[kTile];
    for (int r = 0; r < kTile; ++r) acc[r] = target[r];
    const Vec<T>* left = tile(factor, i, 0);
    for (int p = 0; p < i * kTile; ++p, left += kTile) {
      for (int r = 0; r < kTile; ++r) acc[r] -= left[r] * x[p];
    }
    for (int c = 0; c < kTile; ++c, left += kTile) {
      acc[c] *= inverse[i * kTile + c];
      for (int r = c + 1; r < kTile; ++r) acc[r] -= left[r] * acc[c];
    }
    for (int r = 0; r < kTile; ++r) target[r] = acc[r];
  }
  for (int k = nb - 1; k >= 0; --k) {
    Vec<T>* target = x + k * kTile;
    Vec<T> acc[kTile];
    for (int c = 0; c < kTile; ++c) acc[c] = target[c];
    for (int i = nb - 1; i > k; --i) {
      const Vec<T>* left = tile(factor, i, k);
      for (int r = 0; r < kTile; ++r) {
        for (int c = 0; c < kTile; ++c) acc[c] -= left[c * kTile + r] * x[i * kTile + r];
      }
    }
    const Vec<T>* diagonal = tile(factor, k, k);
    for (int c = kTile - 1; c >= 0; --c) {
      for (int r = c + 1; r < kTile; ++r) acc[c] -= diagonal[c * kTile + r] * acc[r];
      acc[c] *= inverse[k * kTile + c];
    }
    for (int c = 0; c < kTile; ++c) target[c] = acc[c];
  }
}

// y = A x for a symmetric A whose diagonal tiles are full.
template <class T>
void multiply(Vec<T>* matrix, const Vec<T>* x, Vec<T>* y, int nb) {
  for (int i = 0; i < nb; ++i) {
    Vec<T> acc[kTile] = {};
    for (int j = 0; j <= i; ++j) {
      const Vec<T>* block = tile(matrix, i, j);
      for (int c = 0; c < kTile; ++c) {
        for (int r = 0; r < kTile; ++r) acc[r] += block[c * kTile + r] * x[j * kTile + c];
      }
      if (j == i) break;
      for (int c = 0; c < kTile; ++c) {
        Vec<T> sum = y[j * kTile + c];
        for (int r = 0; r < kTile; ++r) sum += block[c * kTile + r] * x[i * kTile + r];
        y[j * kTile + c] = sum;
      }
    }
    for (int r = 0; r < kTile; ++r) y[i * kTile + r] = acc[r];
  }
}

template <class T>
inline Vec<T> dot(const Vec<T>* x, const Vec<T>* y, int n) {
  Vec<T> sum = {};
  for (int i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

template <class T>
void load_vector(const T* source, int64_t n, int64_t worlds, int count, Vec<T>* x, int padded) {
  for (int i = 0; i < padded; ++i) x[i] = i < n ? load<T>(source + i * worlds, count) : Vec<T>{};
}

template <class T>
void store_vector(T* target, const Vec<T>* x, int64_t n, int64_t worlds, int count) {
  for (int64_t i = 0; i < n; ++i) store<T>(target + i * worlds, x[i], count);
}

// ---- constraint rows

// Rows with weight in at least one world of the group. `blocks` has a bit per tile column in which J is not zero
// (columns 64 apart share a bit).
template <class T>
struct Rows {
  int count;
  Vec<T>* jac;
  Vec<T>* weight;
  Vec<T>* residual;
  Vec<T>* rate;
  Vec<T>* stiffness;
  uint64_t* blocks;
  int* index;
  int* active;
  Vec<T>* scaled;
};

inline bool has_block(uint64_t blocks, int block) { return (blocks >> (block & 63)) & 1; }

template <class T>
Mask<T> select_rows(const T* weight, int64_t nefc, int64_t worlds, int count, Rows<T>& rows) {
  Mask<T> constrained = {};
  rows.count = 0;
  for (int64_t i = 0; i < nefc; ++i) {
    Vec<T> w = load<T>(weight + i * worlds, count);
    Mask<T> used = w != 0;
    if (!any<T>(used)) continue;
    constrained |= used;
    rows.weight[rows.count] = w;
    rows.index[rows.count++] = int(i);
  }
  return constrained;
}

template <class T>
void pack_rows(const T* jac, int64_t nv, int64_t worlds, int count, Rows<T>& rows) {
  const int nb = tiles(nv), padded = nb * kTile;
  for (int k = 0; k < rows.count; ++k) {
    const T* source = jac + int64_t(rows.index[k]) * nv * worlds;
    Vec<T>* row = rows.jac + size_t(k) * padded;
    uint64_t blocks = 0;
    for (int b = 0; b < nb; ++b) {
      Mask<T> used = {};
      for (int c = b * kTile; c < (b + 1) * kTile; ++c) {
        row[c] = c < nv ? load<T>(source + c * worlds, count) : Vec<T>{};
        used |= row[c] != 0;
      }
      if (any<T>(used)) blocks |= uint64_t(1) << (b & 63);
    }
    rows.blocks[k] = blocks;
  }
}

// out_k = J_k x
template <class T>
void row_products(const Rows<T>& rows, const Vec<T>* x, Vec<T>* out, int nb) {
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
    Vec<T> acc[kTile] = {};
    for (int b = 0; b < nb; ++b) {
      if (!has_block(rows.blocks[k], b)) continue;
      for (int c = 0; c < kTile; ++c) acc[c] += row[b * kTile + c] * x[b * kTile + c];
    }
    out[k] = (acc[0] + acc[1]) + (acc[2] + acc[3]);
  }
}

// Rows that have stiffness in some world, and H = A + J' diag(stiffness) J.
template <class T>
void assemble(Rows<T>& rows, Vec<T>* base, Vec<T>* target, int nb) {
  int active = 0;
  for (int k = 0; k < rows.count; ++k) {
    if (any<T>(rows.stiffness[k] != 0)) rows.active[active++] = k;
  }
  int* found = rows.active + rows.count;
  for (int i = 0; i < nb; ++i) {
    int hits = 0;
    for (int a = 0; a < active; ++a) {
      const int k = rows.active[a];
      if (!has_block(rows.blocks[k], i)) continue;
      const Vec<T>* row = rows.jac + (size_t(k) * nb + i) * kTile;
      for (int r = 0; r < kTile; ++r) rows.scaled[hits * kTile + r] = rows.stiffness[k] * row[r];
      found[hits++] = k;
    }
    for (int j = 0; j <= i; ++j) {
      const Vec<T>* source = tile(base, i, j);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = source[e];
      for (int h = 0; h < hits; ++h) {
        if (!has_block(rows.blocks[found[h]], j)) continue;
        const Vec<T>* left = rows.scaled + h * kTile;
        const Vec<T>* right = rows.jac + (size_t(found[h]) * nb + j) * kTile;
        for (int c = 0; c < kTile; ++c) {
          for (int r = 0; r < kTile; ++r) acc[c * kTile + r] += left[r] * right[c];
        }
      }
      Vec<T>* out = tile(target, i, j);
      for (int e = 0; e < kTileSize; ++e) out[e] = acc[e];
    }
  }
}

// ---- line search

template <class T>
struct Point {
  Vec<T> alpha, cost, slope, curvature;
};

template <class T>
inline Point<T> pick(Mask<T> mask, const Point<T>& yes, const Point<T>& no) {
  return {mask ? yes.alpha : no.alpha, mask ? yes.cost : no.cost, mask ? yes.slope : no.slope,
          mask ? yes.curvature : no.curvature};
}

template <class T>
struct Line {
  const Rows<T>* rows;
  Vec<T> linear, quadratic;
};

// Cost above the start's, slope and curvature at `n` steps in one pass over the rows.
template <class T, int n>
void evaluate(const Line<T>& line, const Vec<T>* alpha, Point<T>* out) {
  const Rows<T>& rows = *line.rows;
  Vec<T> cost[n] = {}, slope[n] = {}, curvature[n] = {};
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> start = rows.residual[k], rate = rows.rate[k], weight = rows.weight[k];
    const Vec<T> below_start = negative<T>(start), pull = weight * rate, stiff = pull * rate;
    for (int e = 0; e < n; ++e) {
      const Vec<T> residual = start + alpha[e] * rate;
      const Vec<T> below = negative<T>(residual);
      cost[e] += weight * (below - below_start) * (below + below_start);
      slope[e] += pull * below;
      curvature[e] += residual < 0 ? stiff : Vec<T>{};
    }
  }
  for (int e = 0; e < n; ++e) {
    out[e].alpha = alpha[e];
    out[e].cost = alpha[e] * (line.linear + alpha[e] * line.quadratic) + T(0.5) * cost[e];
    out[e].slope = line.linear + T(2) * alpha[e] * line.quadratic + slope[e];
    const Vec<T> total = T(2) * line.quadratic + curvature[e];
    out[e].curvature = total <= 0 ? fill<T>(kMinVal<T>) : total;
  }
}

template <class T>
inline Vec<T> newton_step(const Point<T>& point) {
  return point.alpha - point.slope / point.curvature;
}

template <class T>
inline Point<T> better(const Point<T>& start, const Point<T>& near, const Point<T>& far) {
  const Point<T> end = pick<T>(near.cost <= far.cost, near, far);
  return pick<T>(end.cost < start.cost, end, start);
}

template <class T>
inline Mask<T> tighten(Point<T>& end, const Point<T>* candidates) {
  Mask<T> moved = {};
  for (int i = 0; i < 3; ++i) {
    const Point<T>& next = candidates[i];
    const Mask<T> take = ((end.slope < next.slope) & (next.slope < 0)) | ((end.slope > next.slope) & (next.slope > 0));
    end = pick<T>(take, next, end);
    moved |= take;
  }
  return moved;
}

// Shrink the bracket [near, far] by Newton steps from both ends and by the midpoint, in the worlds `searching`.
template <class T>
void bracket(const Line<T>& line, const Point<T>& start, Point<T> near, Point<T> far, Vec<T> tolerance,
             Mask<T> searching, Mask<T> evaluations, int limit, Point<T>& result) {
  Point<T> found[3];
  Vec<T> alpha[3] = {newton_step(near), T(0.5) * (near.alpha + far.alpha)};
  evaluate<T, 2>(line, alpha, found);
  Point<T> candidates[3] = {found[0], near, found[1]};
  evaluations -= searching;
  for (;;) {
    const Mask<T> exhausted = searching & (evaluations >= limit);
    result = pick<T>(exhausted, better<T>(start, near, far), result);
    searching &= ~exhausted;
    if (!any<T>(searching)) return;
    evaluations -= searching;

    Point<T> best = candidates[0];
    Mask<T> converged = absolute<T>(best.slope) < tolerance;
    for (int i = 1; i < 3; ++i) {
      const Mask<T> take =
          (absolute<T>(candidates[i].slope) < tolerance) & (~converged | (candidates[i].cost < best.cost));
      best = pick<T>(take, candidates[i], best);
      converged |= take;
    }
    result = pick<T>(searching & converged, best, result);
    searching &= ~converged;

    const Point<T> middle = candidates[2];
    const Mask<T> near_moved = tighten<T>(near, candidates), far_moved = tighten<T>(far, candidates);
    const Mask<T> stuck = searching & ~near_moved & ~far_moved;
    const Point<T> fallback = pick<T>(middle.cost < start.cost, middle, better<T>(start, near, far));
    result = pick<T>(stuck, fallback, result);
    searching &= ~stuck;
    if (!any<T>(searching)) return;

    alpha[0] = newton_step(near);
    alpha[1] = newton_step(far);
    alpha[2] = T(0.5) * (near.alpha + far.alpha);
    evaluate<T, 3>(line, alpha, found);
    candidates[0] = pick<T>(near_moved, found[0], candidates[0]);
    candidates[1] = pick<T>(far_moved, found[1], candidates[1]);
    candidates[2] = found[2];
    evaluations -= (searching & near_moved) + (searching & far_moved);
  }
}

// Step of least cost along the line; the start where `done` or where nothing better is found.
template <class T>
Point<T> search_line(const Line<T>& line, Vec<T> tolerance, Mask<T> done, int limit) {
  Point<T> start, first;
  Vec<T> alpha = {};
  evaluate<T, 1>(line, &alpha, &start);
  Vec<T> rows = {};
  for (int k = 0; k < line.rows->count; ++k) {
    const Vec<T> below = negative<T>(line.rows->residual[k]);
    rows += line.rows->weight[k] * below * below;
  }
  const Vec<T> terms = square_root<T>(rows * floor_at<T>(start.curvature - T(2) * line.quadratic, T(0))) +
                       absolute<T>(line.linear);
  const Vec<T> noise = T(8) * std::numeric_limits<T>::epsilon() * terms;
  tolerance = tolerance > noise ? tolerance : noise;

  alpha = newton_step(start);
  evaluate<T, 1>(line, &alpha, &first);
  Point<T> result = pick<T>(done, start, first);
  Mask<T> evaluations = Mask<T>{} + 2;
  Mask<T> searching = ~done & (absolute<T>(first.slope) >= tolerance) & (evaluations < limit);
  const Mask<T> rising = first.slope < 0;

  Point<T> near = first, far = first;
  Mask<T> bracketed = {};
  while (any<T>(searching)) {
    Point<T> trial;
    alpha = newton_step(near);
    evaluate<T, 1>(line, &alpha, &trial);
    far = pick<T>(searching, near, far);
    near = pick<T>(searching, trial, near);
    evaluations -= searching;
    result = pick<T>(searching, near, result);
    const Mask<T> going = searching & (absolute<T>(near.slope) >= tolerance) & (evaluations < limit);
    searching = going & ((rising ? near.slope : -near.slope) <= -tolerance);
    bracketed |= going & ~searching;
  }
  if (any<T>(bracketed)) bracket<T>(line, start, near, far, tolerance, bracketed, evaluations, limit, result);
  return result;
}

// ---- Newton

template <class T>
struct Problem {
  const T *mass, *jac, *weight, *aref, *force, *qacc_smooth, *qacc_warmstart;
  T* qacc;
  int32_t* niter;
  int64_t nv, nefc, worlds;
  T tolerance, ls_tolerance;
  int iterations, ls_iterations;
};

template <class T>
struct Work {
  Vec<T> *mass, *hessian, *inverse, *force, *qacc, *smooth, *momentum, *grad, *search, *search_momentum;
  Rows<T> rows;
};

template <class T>
void gradient(const Work<T>& w, int nb) {
  const Rows<T>& rows = w.rows;
  for (int i = 0; i < nb * kTile; ++i) w.grad[i] = w.momentum[i] - w.force[i];
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> pull = rows.weight[k] * negative<T>(rows.residual[k]);
    if (!any<T>(pull != 0)) continue;
    const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
    for (int b = 0; b < nb; ++b) {
      if (!has_block(rows.blocks[k], b)) continue;
      for (int c = b * kTile; c < (b + 1) * kTile; ++c) w.grad[c] += row[c] * pull;
    }
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
void choose_start(const Problem<T>& p, Work<T>& w, Mask<T> constrained, int64_t world, int count) {
  const int nb = tiles(p.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  load_vector<T>(p.qacc_smooth + world, p.nv, p.worlds, count, w.smooth, padded);
  load_vector<T>(p.qacc_warmstart + world, p.nv, p.worlds, count, w.qacc, padded);
  row_products<T>(rows, w.qacc, rows.residual, nb);
  row_products<T>(rows, w.smooth, rows.rate, nb);
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T> aref = load<T>(p.aref + rows.index[k] * p.worlds + world, count);
    rows.residual[k] -= aref;
    rows.rate[k] -= aref;
  }
  multiply<T>(w.mass, w.qacc, w.momentum, nb);
  Vec<T> warm = row_cost<T>(rows, rows.residual);
  for (int i = 0; i < padded; ++i) warm += (w.momentum[i] - w.force[i]) * (w.qacc[i] - w.smooth[i]);
  const Mask<T> smooth = (warm > row_cost<T>(rows, rows.rate)) | ~constrained;
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
  factorize<T>(w.hessian, w.inverse, nb);
  std::memcpy(w.search, w.grad, padded * sizeof(Vec<T>));
  substitute<T>(w.hessian, w.inverse, w.search, nb);
  return flat & (scale * T(0.5) * dot<T>(w.grad, w.search, padded) < tolerance);
}

template <class T>
void solve_group(const Problem<T>& p, Work<T>& w, int64_t world, int count) {
  const int nb = tiles(p.nv), padded = nb * kTile;
  Rows<T>& rows = w.rows;
  const Mask<T> constrained = select_rows<T>(p.weight + world, p.nefc, p.worlds, count, rows);
  Mask<T> niter = {};
  if (rows.count == 0) {
    load_vector<T>(p.qacc_smooth + world, p.nv, p.worlds, count, w.qacc, padded);
  } else {
    pack_rows<T>(p.jac + world, p.nv, p.worlds, count, rows);
    pack_symmetric<T>(p.mass + world, p.nv, p.worlds, count, w.mass);
    load_vector<T>(p.force + world, p.nv, p.worlds, count, w.force, padded);
    Vec<T> trace = {};
    for (int i = 0; i < p.nv; ++i) trace += tile(w.mass, i / kTile, i / kTile)[(i % kTile) * (kTile + 1)];
    const Vec<T> scale = T(1) / floor_at<T>(trace, kMinVal<T>);

    choose_start<T>(p, w, constrained, world, count);
    gradient<T>(w, nb);
    Mask<T> done = ~constrained;
    done |= certified<T>(w, scale, done, p.tolerance, nb);
    for (int step = 0; step < p.iterations && any<T>(~done); ++step) {
      for (int k = 0; k < rows.count; ++k) {
        rows.stiffness[k] = (rows.residual[k] < 0) & ~done ? rows.weight[k] : Vec<T>{};
      }
      assemble<T>(rows, w.mass, w.hessian, nb);
      factorize<T>(w.hessian, w.inverse, nb);
      for (int i = 0; i < padded; ++i) w.search[i] = -w.grad[i];
      substitute<T>(w.hessian, w.inverse, w.search, nb);
      if (step > 0) {
        const Vec<T> decrement = T(-0.5) * dot<T>(w.grad, w.search, padded);
        done |= ~(scale * decrement >= p.tolerance);
        if (!any<T>(~done)) break;
      }

      multiply<T>(w.mass, w.search, w.search_momentum, nb);
      row_products<T>(rows, w.search, rows.rate, nb);
      Line<T> line = {&rows, {}, T(0.5) * dot<T>(w.search, w.search_momentum, padded)};
      for (int i = 0; i < padded; ++i) line.linear += w.search[i] * (w.momentum[i] - w.force[i]);
      const Vec<T> length = square_root<T>(dot<T>(w.search, w.search, padded));
      const Vec<T> slope_tolerance = p.tolerance * p.ls_tolerance * length / scale;
      const Point<T> found = search_line<T>(line, slope_tolerance, done | (length < kMinVal<T>), p.ls_iterations);

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
      done |= ((improvement > 0) & (improvement < p.tolerance)) | ~(slope >= p.tolerance);
    }
  }
  store_vector<T>(p.qacc + world, w.qacc, p.nv, p.worlds, count);
  for (int lane = 0; lane < count; ++lane) p.niter[world + lane] = int32_t(niter[lane]);
}

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
  for (Vec<T>** x : {&w.inverse, &w.force, &w.qacc, &w.smooth, &w.momentum, &w.grad, &w.search, &w.search_momentum}) {
    *x = arena.take<Vec<T>>(padded);
  }
  for (Vec<T>** x : {&w.rows.weight, &w.rows.residual, &w.rows.rate, &w.rows.stiffness}) *x = arena.take<Vec<T>>(n);
  w.rows.scaled = arena.take<Vec<T>>(n * kTile);
  w.rows.blocks = arena.take<uint64_t>(n);
  w.rows.index = arena.take<int>(n);
  w.rows.active = arena.take<int>(2 * n);
  w.rows.jac = arena.take<Vec<T>>(n * padded);
  w.rows.count = 0;
  return w;
}

template <class T>
Work<T> workspace(int64_t nv, int64_t nefc) {
  Arena measure{nullptr};
  lay_out<T>(measure, nv, nefc);
  Arena arena{buffer.reserve(measure.used)};
  return lay_out<T>(arena, nv, nefc);
}

constexpr int64_t kGroupsPerThread = 8;  // fewer are not worth starting a thread (some 20 us)
constexpr int64_t kGroupsPerTurn = 4;

// Calls `body(world, count)` for every group of worlds. `make()` gives a thread its own body.
template <class T, class Make>
int for_groups(int64_t worlds, int threads, const Make& make) {
  const int64_t groups = (worlds + kLanes<T> - 1) / kLanes<T>;
  const int64_t useful = groups / kGroupsPerThread;
  const int used = int(useful < threads ? useful : threads);
  std::atomic<int64_t> next{0};
  std::atomic<int> failures{0};
  auto run = [&] {
    try {
      auto body = make();
      for (;;) {
        const int64_t first = next.fetch_add(kGroupsPerTurn);
        if (first >= groups) break;
        const int64_t last = first + kGroupsPerTurn < groups ? first + kGroupsPerTurn : groups;
        for (int64_t group = first; group < last; ++group) {
          const int64_t world = group * kLanes<T>, left = worlds - world;
          body(world, int(left < kLanes<T> ? left : kLanes<T>));
        }
      }
    } catch (...) {
      failures.fetch_add(1);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < used; ++i) {
    try {
      helpers.emplace_back(run);
    } catch (...) {
      break;  // the threads there are do all the work
    }
  }
  run();
  for (std::thread& helper : helpers) helper.join();
  return failures.load();
}

// ---- entry points for one element type; 0 is success

template <class T>
int chol_factor(const T* a, T* out, int64_t n, int64_t worlds, int threads) {
  return for_groups<T>(worlds, threads, [&] {
    return [=, w = workspace<T>(n, 0)](int64_t world, int count) {
      pack_symmetric<T>(a + world, n, worlds, count, w.hessian);
      factorize<T>(w.hessian, w.inverse, tiles(n));
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const Vec<T>* block = tile(w.hessian, int(i / kTile), int(j / kTile));
          const Vec<T> x = j <= i ? block[(j % kTile) * kTile + i % kTile] : Vec<T>{};
          store<T>(out + (i * n + j) * worlds + world, x, count);
        }
      }
    };
  });
}

template <class T>
int chol_solve(const T* factor, const T* b, T* out, int64_t n, int64_t worlds, int threads) {
  return for_groups<T>(worlds, threads, [&] {
    return [=, w = workspace<T>(n, 0)](int64_t world, int count) {
      const int nb = tiles(n);
      pack_symmetric<T>(factor + world, n, worlds, count, w.hessian);
      for (int i = 0; i < nb * kTile; ++i) {
        w.inverse[i] = T(1) / tile(w.hessian, i / kTile, i / kTile)[(i % kTile) * (kTile + 1)];
      }
      load_vector<T>(b + world, n, worlds, count, w.search, nb * kTile);
      substitute<T>(w.hessian, w.inverse, w.search, nb);
      store_vector<T>(out + world, w.search, n, worlds, count);
    };
  });
}

template <class T>
int hessian_solve(const T* mass, const T* jac, const T* weight, const T* b, T* out, int64_t nv, int64_t nefc,
                  int64_t worlds, int threads) {
  return for_groups<T>(worlds, threads, [&] {
    return [=, w = workspace<T>(nv, nefc)](int64_t world, int count) mutable {
      const int nb = tiles(nv);
      Vec<T>* matrix = w.mass;
      select_rows<T>(weight + world, nefc, worlds, count, w.rows);
      pack_symmetric<T>(mass + world, nv, worlds, count, w.mass);
      if (w.rows.count > 0) {
        pack_rows<T>(jac + world, nv, worlds, count, w.rows);
        for (int k = 0; k < w.rows.count; ++k) w.rows.stiffness[k] = w.rows.weight[k];
        assemble<T>(w.rows, w.mass, w.hessian, nb);
        matrix = w.hessian;
      }
      factorize<T>(matrix, w.inverse, nb);
      load_vector<T>(b + world, nv, worlds, count, w.search, nb * kTile);
      substitute<T>(matrix, w.inverse, w.search, nb);
      store_vector<T>(out + world, w.search, nv, worlds, count);
    };
  });
}

template <class T>
int newton(const Problem<T>& problem, int threads) {
  return for_groups<T>(problem.worlds, threads, [&] {
    return [&problem, w = workspace<T>(problem.nv, problem.nefc)](int64_t world, int count) mutable {
      solve_group<T>(problem, w, world, count);
    };
  });
}

}  // namespace

#define MJT_ENTRY_POINTS(T, suffix)                                                                                  \
  extern "C" int mjt_chol_factor_##suffix(const T* a, T* out, int64_t n, int64_t worlds, int threads) {              \
    return chol_factor<T>(a, out, n, worlds, threads);                                                               \
  }                                                                                                                  \
  extern "C" int mjt_chol_solve_##suffix(const T* factor, const T* b, T* out, int64_t n, int64_t worlds,             \
                                         int threads) {                                                              \
    return chol_solve<T>(factor, b, out, n, worlds, threads);                                                        \
  }                                                                                                                  \
  extern "C" int mjt_hessian_solve_##suffix(const T* mass, const T* jac, const T* weight, const T* b, T* out,        \
                                            int64_t nv, int64_t nefc, int64_t worlds, int threads) {                 \
    return hessian_solve<T>(mass, jac, weight, b, out, nv, nefc, worlds, threads);                                   \
  }                                                                                                                  \
  extern "C" int mjt_newton_##suffix(const T* mass, const T* jac, const T* weight, const T* aref, const T* force,    \
                                     const T* qacc_smooth, const T* qacc_warmstart, T* qacc, int32_t* niter,         \
                                     int64_t nv, int64_t nefc, int64_t worlds, double tolerance,                     \
                                     double ls_tolerance, int iterations, int ls_iterations, int threads) {          \
    return newton<T>({mass, jac, weight, aref, force, qacc_smooth, qacc_warmstart, qacc, niter, nv, nefc, worlds,    \
                      T(tolerance), T(ls_tolerance), iterations, ls_iterations},                                     \
                     threads);                                                                                       \
  }

MJT_ENTRY_POINTS(double, f64)
MJT_ENTRY_POINTS(float, f32)
