// Linear algebra and the constraint solver for many small worlds, one world per SIMD lane.
//
// Tensors have the world as their last dimension, of stride 1. A group is as many worlds as a register holds. Its data
// is copied to a compact workspace, where every number is a register wide ("Vec"), so the code below reads as if for
// one world; masks keep the worlds of a group apart where their paths differ. A few neighbouring groups are copied at
// once (a "turn"), since their numbers share memory pages. The algorithm is that of newton.py.
//
// This is one translation unit; its parts are, in this order, simd.h, matrix.h, rows.h, factors.h, line_search.h,
// newton.h and workspace.h. Plain C interface at the end of this file.

#include "workspace.h"

namespace {

// Entry points for one element type; 0 is success.

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
    pack_dense<T>(jac, weight, nv, nefc, worlds, turn, rows);
    for (int g = 0; g < turn.groups; ++g) {
      for (int k = 0; k < rows[g]->count; ++k) rows[g]->stiffness[k] = rows[g]->weight[k];
      assemble<T>(*rows[g], masses[g], works[g].hessian, nb);
      factorize<T>(works[g].hessian, works[g].inverse, works[g].panel, nb);
      solve_one<T>(works[g], works[g].hessian, b, out, nv, worlds, turn, g);
    }
  });
}

template <class T>
int solve(const Problem<T>& p, int threads) {
  Factors<T> factors{p.cdof, p.wrench, p.limit_axis, p.limit_dof, p.limit_size, p.nv, p.limits, p.contacts, p.sides,
                     p.worlds, p.fixed_axis != 0, {}, {}, {}, {}};
  try {
    factors.list_columns(p.moved);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return for_turns<T>(p.nv, p.limits + p.contacts, p.worlds, threads,
                      [&](Work<T>* works, const Turn& turn) { solve_turn<T>(p, factors, works, turn); });
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
  extern "C" int mjt_solve_##suffix(const Problem<T>* problem, int threads) { return solve<T>(*problem, threads); }

MJT_ENTRY_POINTS(double, f64)
MJT_ENTRY_POINTS(float, f32)
