// Linear algebra and the constraint solver for many small worlds, one world per SIMD lane.
//
// Tensors have the world as their last dimension, of stride 1. A group is as many worlds as a register holds. Its data
// is copied to a compact workspace, where every number is a register wide ("Vec"), so the code below reads as if for
// one world; masks keep the worlds of a group apart where their paths differ. A few neighbouring groups are copied at
// once (a "turn"), since their numbers share memory pages. The algorithm is that of newton.py.
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
#include <system_error>
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
    const V x = right[c];
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

// Neighbouring groups that a thread takes together. In a large batch nearly every number of a world lies in a page of
// its own, and looking up the page costs as much as the number (humanoid, 4,096 worlds, float64, one thread: 7.2 us a
// world in turns of 1, 6.1 in turns of 4, 5.4 in turns of 8; no difference with 256 worlds).
constexpr int kTurn = 4;

struct Turn {
  int64_t world;  // the first
  int groups;
  int last;  // worlds in the last group
};

template <class T>
inline int count_of(const Turn& turn, int group) {
  return group + 1 < turn.groups ? kLanes<T> : turn.last;
}

// ---- tiled lower-triangular matrices

inline int tiles(int64_t n) { return int((n + kTile - 1) / kTile); }

template <class V>
inline V* tile(V* matrix, int i, int j) {
  return matrix + (size_t(i) * (i + 1) / 2 + j) * kTileSize;
}

inline size_t matrix_size(int nb) { return size_t(nb) * (nb + 1) / 2 * kTileSize; }

// Lower triangles of symmetric (n, n, B) matrices into tiles, where `matrices` is not null; diagonal tiles become full.
template <class T>
void pack_symmetric(const T* source, int64_t n, int64_t worlds, const Turn& turn, Vec<T>* const* matrices) {
  for (int64_t i = 0; i < int64_t(tiles(n)) * kTile; ++i) {
    for (int g = 0; g < turn.groups; ++g) {
      if (!matrices[g]) continue;
      const T* row = source + i * n * worlds + turn.world + g * kLanes<T>;
      const int bi = int(i / kTile), r = int(i % kTile);
      for (int64_t j = 0; j <= i; ++j) {
        const Vec<T> x = i < n ? load<T>(row + j * worlds, count_of<T>(turn, g)) : fill<T>(T(i == j));
        const int bj = int(j / kTile), c = int(j % kTile);
        tile(matrices[g], bi, bj)[c * kTile + r] = x;
        if (bi == bj) tile(matrices[g], bi, bj)[r * kTile + c] = x;
      }
    }
  }
}

// In place, A to U with A = U D^-1 U', U lower and D its diagonal: a Cholesky factor is U D^-1/2, but this one needs no
// square roots, whose latency would dominate small matrices. `inverse` gets D^-1, `panel` is scratch (one tile row).
template <class T>
void factorize(Vec<T>* matrix, Vec<T>* inverse, Vec<T>* panel, int nb) {
  for (int k = 0; k < nb; ++k) {
    Vec<T>* diagonal = tile(matrix, k, k);
    Vec<T>* scale = inverse + k * kTile;
    const Vec<T>* row = tile(matrix, k, 0);
    for (int p = 0; p < k * kTile; ++p) {
      for (int c = 0; c < kTile; ++c) panel[p * kTile + c] = -row[p * kTile + c] * inverse[p];
    }
    for (int i = k; i < nb; ++i) {
      Vec<T>* target = tile(matrix, i, k);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = target[e];
      const Vec<T>* left = tile(matrix, i, 0);
      const Vec<T>* right = panel;
      for (int p = 0; p < k * kTile; ++p, left += kTile, right += kTile) {
        add_outer(acc, left, right);
      }
      if (i == k) {
        for (int c = 0; c < kTile; ++c) {
          acc[c * kTile + c] = floor_at<T>(acc[c * kTile + c], kMinVal<T>);
          scale[c] = T(1) / acc[c * kTile + c];
          for (int d = c + 1; d < kTile; ++d) {
            const Vec<T> factor = acc[c * kTile + d] * scale[c];
            for (int r = d; r < kTile; ++r) acc[d * kTile + r] -= acc[c * kTile + r] * factor;
          }
        }
      } else {
        for (int c = 0; c < kTile; ++c) {
          for (int d = c + 1; d < kTile; ++d) {
            const Vec<T> factor = diagonal[c * kTile + d] * scale[c];
            for (int r = 0; r < kTile; ++r) acc[d * kTile + r] -= acc[c * kTile + r] * factor;
          }
        }
      }
      for (int e = 0; e < kTileSize; ++e) target[e] = acc[e];
    }
  }
}

// In place, x to the solution of U D^-1 U' x = b.
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
    Vec<T> acc[kTile] = {};
    for (int i = nb - 1; i > k; --i) {
      const Vec<T>* left = tile(factor, i, k);
      for (int r = 0; r < kTile; ++r) {
        for (int c = 0; c < kTile; ++c) acc[c] += left[c * kTile + r] * x[i * kTile + r];
      }
    }
    const Vec<T>* diagonal = tile(factor, k, k);
    for (int c = kTile - 1; c >= 0; --c) {
      for (int r = c + 1; r < kTile; ++r) acc[c] += diagonal[c * kTile + r] * target[r];
      target[c] -= inverse[k * kTile + c] * acc[c];
    }
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

// A run of rows with stiffness in some world and the same blocks: the rows of a contact.
struct Span {
  uint64_t blocks;
  int first, last;  // in the list of hits
};

// Rows with weight in at least one world of the group. `blocks` has a bit per tile column in which J is not zero
// (columns 64 apart share a bit).
template <class T>
struct Rows {
  int count;
  Mask<T> constrained;  // worlds with any such row
  Vec<T>* jac;
  Vec<T>* weight;
  Vec<T>* residual;
  Vec<T>* rate;
  Vec<T>* stiffness;
  uint64_t* blocks;
  int* index;
  int* active;
  Vec<T>* scaled;
  const Vec<T>** hits;
  Span* spans;
};

inline bool has_block(uint64_t blocks, int block) { return (blocks >> (block & 63)) & 1; }

template <class T>
void pack_row(const T* source, int64_t nv, int64_t worlds, int count, Rows<T>& rows) {
  const int nb = tiles(nv);
  Vec<T>* row = rows.jac + size_t(rows.count) * nb * kTile;
  uint64_t blocks = 0;
  for (int b = 0; b < nb; ++b) {
    Mask<T> used = {};
    for (int c = b * kTile; c < (b + 1) * kTile; ++c) {
      row[c] = c < nv ? load<T>(source + c * worlds, count) : Vec<T>{};
      used |= row[c] != 0;
    }
    if (any<T>(used)) blocks |= uint64_t(1) << (b & 63);
  }
  rows.blocks[rows.count] = blocks;
}

// The rows (nefc, nv, B) with weight (nefc, B) of each group of a turn.
template <class T>
void pack_rows(const T* jac, const T* weight, int64_t nv, int64_t nefc, int64_t worlds, const Turn& turn,
               Rows<T>* const* groups) {
  for (int g = 0; g < turn.groups; ++g) {
    groups[g]->count = 0;
    groups[g]->constrained = Mask<T>{};
  }
  for (int64_t i = 0; i < nefc; ++i) {
    for (int g = 0; g < turn.groups; ++g) {
      Rows<T>& rows = *groups[g];
      const int64_t world = turn.world + g * kLanes<T>;
      const Vec<T> w = load<T>(weight + i * worlds + world, count_of<T>(turn, g));
      const Mask<T> used = w != 0;
      if (!any<T>(used)) continue;
      pack_row<T>(jac + i * nv * worlds + world, nv, worlds, count_of<T>(turn, g), rows);
      rows.constrained |= used;
      rows.weight[rows.count] = w;
      rows.index[rows.count++] = int(i);
    }
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

// H = A + J' diag(stiffness) J
template <class T>
void assemble(Rows<T>& rows, Vec<T>* base, Vec<T>* target, int nb) {
  int active = 0;
  for (int k = 0; k < rows.count; ++k) {
    if (any<T>(rows.stiffness[k] != 0)) rows.active[active++] = k;
  }
  for (int i = 0; i < nb; ++i) {
    int hits = 0, spans = 0;
    for (int a = 0; a < active; ++a) {
      const int k = rows.active[a];
      const uint64_t blocks = rows.blocks[k];
      if (!has_block(blocks, i)) continue;
      if (spans == 0 || rows.spans[spans - 1].blocks != blocks) rows.spans[spans++] = {blocks, hits, hits};
      const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
      for (int r = 0; r < kTile; ++r) rows.scaled[hits * kTile + r] = rows.stiffness[k] * row[i * kTile + r];
      rows.hits[hits++] = row;
      rows.spans[spans - 1].last = hits;
    }
    for (int j = 0; j <= i; ++j) {
      const Vec<T>* source = tile(base, i, j);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = source[e];
      for (int s = 0; s < spans; ++s) {
        if (!has_block(rows.spans[s].blocks, j)) continue;
        for (int h = rows.spans[s].first; h < rows.spans[s].last; ++h) {
          const Vec<T>* left = rows.scaled + h * kTile;
          const Vec<T>* right = rows.hits[h] + j * kTile;
          add_outer(acc, left, right);
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
  Vec<T> *mass, *hessian, *inverse, *panel, *force, *qacc, *smooth, *momentum, *grad, *search, *search_momentum;
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
void choose_start(const Problem<T>& p, Work<T>& w, int64_t world, int count) {
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

  choose_start<T>(p, w, world, count);
  gradient<T>(w, nb);
  Mask<T> niter = {};
  Mask<T> done = ~rows.constrained;
  done |= certified<T>(w, scale, done, p.tolerance, nb);
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
  return niter;
}

template <class T>
void solve_turn(const Problem<T>& p, Work<T>* works, const Turn& turn) {
  Rows<T>* rows[kTurn];
  for (int g = 0; g < turn.groups; ++g) rows[g] = &works[g].rows;
  pack_rows<T>(p.jac, p.weight, p.nv, p.nefc, p.worlds, turn, rows);
  Vec<T>* masses[kTurn];
  for (int g = 0; g < turn.groups; ++g) masses[g] = rows[g]->count ? works[g].mass : nullptr;
  pack_symmetric<T>(p.mass, p.nv, p.worlds, turn, masses);
  for (int g = 0; g < turn.groups; ++g) {
    const int64_t world = turn.world + g * kLanes<T>;
    const int count = count_of<T>(turn, g);
    Mask<T> niter = {};
    if (rows[g]->count) {
      niter = iterate<T>(p, works[g], world, count);
    } else {
      load_vector<T>(p.qacc_smooth + world, p.nv, p.worlds, count, works[g].qacc, int(p.nv));
    }
    store_vector<T>(p.qacc + world, works[g].qacc, p.nv, p.worlds, count);
    for (int lane = 0; lane < count; ++lane) p.niter[world + lane] = int32_t(niter[lane]);
  }
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
  w.panel = arena.take<Vec<T>>(padded * kTile);
  for (Vec<T>** x : {&w.inverse, &w.force, &w.qacc, &w.smooth, &w.momentum, &w.grad, &w.search, &w.search_momentum}) {
    *x = arena.take<Vec<T>>(padded);
  }
  for (Vec<T>** x : {&w.rows.weight, &w.rows.residual, &w.rows.rate, &w.rows.stiffness}) *x = arena.take<Vec<T>>(n);
  w.rows.scaled = arena.take<Vec<T>>(n * kTile);
  w.rows.blocks = arena.take<uint64_t>(n);
  w.rows.index = arena.take<int>(n);
  w.rows.active = arena.take<int>(n);
  w.rows.hits = arena.take<const Vec<T>*>(n);
  w.rows.spans = arena.take<Span>(n);
  w.rows.jac = arena.take<Vec<T>>(n * padded);
  w.rows.count = 0;
  w.rows.constrained = Mask<T>{};
  return w;
}

// A thread's workspace: one part for each group of a turn.
template <class T>
struct Workspace {
  Work<T> groups[kTurn];
  Workspace(int64_t nv, int64_t nefc) {
    Arena measure{nullptr};
    for (Work<T>& group : groups) group = lay_out<T>(measure, nv, nefc);
    Arena arena{buffer.reserve(measure.used)};
    for (Work<T>& group : groups) group = lay_out<T>(arena, nv, nefc);
  }
};

constexpr int64_t kTurnsPerThread = 2;  // fewer are not worth starting a thread (some 20 us)

// Calls `body(workspace, turn)` for all worlds, on up to `threads` threads. Returns 0, or 1 if memory ran out.
template <class T, class Body>
int for_turns(int64_t nv, int64_t nefc, int64_t worlds, int threads, const Body& body) {
  const int64_t size = int64_t(kTurn) * kLanes<T>, turns = (worlds + size - 1) / size;
  const int64_t useful = turns / kTurnsPerThread;
  const int used = int(useful < threads ? useful : threads);
  std::atomic<int64_t> next{0};
  std::atomic<int> failed{0};
  auto run = [&] {
    try {
      Workspace<T> workspace(nv, nefc);
      for (int64_t i = next.fetch_add(1); i < turns; i = next.fetch_add(1)) {
        const int64_t world = i * size, left = worlds - world < size ? worlds - world : size;
        const int groups = int((left + kLanes<T> - 1) / kLanes<T>);
        body(workspace.groups, Turn{world, groups, int(left - int64_t(groups - 1) * kLanes<T>)});
      }
    } catch (const std::bad_alloc&) {
      failed = 1;
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < used; ++i) {
    try {
      helpers.emplace_back(run);
    } catch (const std::system_error&) {
      break;  // the threads there are do all the work
    }
  }
  run();
  for (std::thread& helper : helpers) helper.join();
  return failed;
}

// ---- entry points for one element type; 0 is success

template <class T>
int chol_factor(const T* a, T* out, int64_t n, int64_t worlds, int threads) {
  return for_turns<T>(n, 0, worlds, threads, [=](Work<T>* works, const Turn& turn) {
    Vec<T>* matrices[kTurn];
    for (int g = 0; g < turn.groups; ++g) matrices[g] = works[g].hessian;
    pack_symmetric<T>(a, n, worlds, turn, matrices);
    for (int g = 0; g < turn.groups; ++g) {
      factorize<T>(works[g].hessian, works[g].inverse, works[g].panel, tiles(n));
      for (int64_t j = 0; j < n; ++j) works[g].search[j] = square_root<T>(works[g].inverse[j]);
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int g = 0; g < turn.groups; ++g) {
        T* row = out + i * n * worlds + turn.world + g * kLanes<T>;
        for (int64_t j = 0; j < n; ++j) {
          const Vec<T>* block = tile(works[g].hessian, int(i / kTile), int(j / kTile));
          const Vec<T> x = j <= i ? block[(j % kTile) * kTile + i % kTile] * works[g].search[j] : Vec<T>{};
          store<T>(row + j * worlds, x, count_of<T>(turn, g));
        }
      }
    }
  });
}

// x = b of group g solved with its factorised matrix.
template <class T>
void solve_one(Work<T>& w, Vec<T>* matrix, const T* b, T* out, int64_t n, int64_t worlds, const Turn& turn, int g) {
  const int64_t world = turn.world + g * kLanes<T>;
  const int nb = tiles(n), count = count_of<T>(turn, g);
  load_vector<T>(b + world, n, worlds, count, w.search, nb * kTile);
  substitute<T>(matrix, w.inverse, w.search, nb);
  store_vector<T>(out + world, w.search, n, worlds, count);
}

template <class T>
int chol_solve(const T* factor, const T* b, T* out, int64_t n, int64_t worlds, int threads) {
  return for_turns<T>(n, 0, worlds, threads, [=](Work<T>* works, const Turn& turn) {
    const int nb = tiles(n);
    Vec<T>* matrices[kTurn];
    for (int g = 0; g < turn.groups; ++g) matrices[g] = works[g].hessian;
    pack_symmetric<T>(factor, n, worlds, turn, matrices);
    for (int g = 0; g < turn.groups; ++g) {
      for (int j = 0; j < nb * kTile; ++j) {  // L to the form of `factorize`
        const int block = j / kTile, column = (j % kTile) * kTile;
        const Vec<T> pivot = tile(matrices[g], block, block)[column + j % kTile];
        works[g].inverse[j] = T(1) / (pivot * pivot);
        for (int i = block; i < nb; ++i) {
          for (int r = 0; r < kTile; ++r) tile(matrices[g], i, block)[column + r] *= pivot;
        }
      }
      solve_one<T>(works[g], matrices[g], b, out, n, worlds, turn, g);
    }
  });
}

template <class T>
int hessian_solve(const T* mass, const T* jac, const T* weight, const T* b, T* out, int64_t nv, int64_t nefc,
                  int64_t worlds, int threads) {
  return for_turns<T>(nv, nefc, worlds, threads, [=](Work<T>* works, const Turn& turn) {
    const int nb = tiles(nv);
    Vec<T>* masses[kTurn];
    Rows<T>* rows[kTurn];
    for (int g = 0; g < turn.groups; ++g) {
      masses[g] = works[g].mass;
      rows[g] = &works[g].rows;
    }
    pack_symmetric<T>(mass, nv, worlds, turn, masses);
    pack_rows<T>(jac, weight, nv, nefc, worlds, turn, rows);
    for (int g = 0; g < turn.groups; ++g) {
      for (int k = 0; k < rows[g]->count; ++k) rows[g]->stiffness[k] = rows[g]->weight[k];
      assemble<T>(*rows[g], masses[g], works[g].hessian, nb);
      factorize<T>(works[g].hessian, works[g].inverse, works[g].panel, nb);
      solve_one<T>(works[g], works[g].hessian, b, out, nv, worlds, turn, g);
    }
  });
}

template <class T>
int newton(const Problem<T>& problem, int threads) {
  return for_turns<T>(problem.nv, problem.nefc, problem.worlds, threads,
                      [&](Work<T>* works, const Turn& turn) { solve_turn<T>(problem, works, turn); });
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
