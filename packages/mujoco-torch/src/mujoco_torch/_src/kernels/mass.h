// The joint-space inertia in MuJoCo's sparse form: of row i the dofs that move with dof i, itself last (M_rowadr,
// M_rownnz, M_colind). Its factor L' D L fills no new elements, since the ancestors of an ancestor are ancestors.

#pragma once

#include "simd.h"
#include "structure.h"

namespace {

// M[i, j] = cdof_j . crb(body of i) cdof_i, plus armature, of crb (10, nbody, B), cdof (6, nv, B), armature (nv). The
// group's cdof is copied to `axes`, six numbers a dof: each is needed again for every dof below, and in a batch its
// numbers lie as far apart as keeps them in a few sets of the cache (humanoid, 256 worlds: 0.21 us, not 0.43).
template <class T>
void mass_matrix(const System& s, const T* crb, const T* cdof, const T* armature, T* mass, int64_t worlds,
                 int64_t world, int count, Vec<T>* axes) {
  for (int64_t i = 0; i < s.nv; ++i) {
    Vec<T> I[10], *v = axes + 6 * i;
    for (int k = 0; k < 10; ++k) I[k] = load<T>(crb + (k * s.nbody + s.dof_bodyid[i]) * worlds + world, count);
    for (int k = 0; k < 6; ++k) v[k] = load<T>(cdof + (k * s.nv + i) * worlds + world, count);
    // Inertia times motion: I = (xx, yy, zz, xy, xz, yz, m x, m y, m z, m).
    const Vec<T> f[6] = {
        I[0] * v[0] + I[3] * v[1] + I[4] * v[2] - I[8] * v[4] + I[7] * v[5],
        I[3] * v[0] + I[1] * v[1] + I[5] * v[2] + I[8] * v[3] - I[6] * v[5],
        I[4] * v[0] + I[5] * v[1] + I[2] * v[2] - I[7] * v[3] + I[6] * v[4],
        I[8] * v[1] - I[7] * v[2] + I[9] * v[3],
        I[6] * v[2] - I[8] * v[0] + I[9] * v[4],
        I[7] * v[0] - I[6] * v[1] + I[9] * v[5],
    };
    const int64_t first = s.M_rowadr[i], last = first + s.M_rownnz[i];
    for (int64_t e = first; e < last; ++e) {
      const Vec<T>* axis = axes + 6 * s.M_colind[e];
      Vec<T> sum = e + 1 == last ? fill<T>(armature[i]) : Vec<T>{};
#pragma GCC unroll 6
      for (int k = 0; k < 6; ++k) sum += axis[k] * f[k];
      store<T>(mass + e * worlds + world, sum, count);
    }
  }
}

constexpr int kChunk = 8;  // elements of a row that are held in registers

// Elements [first, first + n) of row i of M, n up to kChunk, less what the rows of the dofs below give to them.
template <class T>
inline void eliminate_chunk(const System& s, Vec<T>* m, const Vec<T>* inverse, int64_t i, int64_t first, int n) {
  Vec<T>* row = m + s.M_rowadr[i] + first;
  const int64_t own = s.M_rownnz[i] - 1;
  Vec<T> acc[kChunk];
#pragma GCC unroll 8
  for (int c = 0; c < kChunk; ++c) acc[c] = row[c];
  for (int64_t b = s.below_start[i]; b < s.below_start[i + 1]; ++b) {
    const Vec<T>* other = m + s.M_rowadr[s.below[b]];
    const Vec<T> scale = other[own] * inverse[s.below[b]];
#pragma GCC unroll 8
    for (int c = 0; c < kChunk; ++c) acc[c] -= scale * other[first + c];
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChunk; ++c) {
    if (c < n) row[c] = acc[c];
  }
}

// In place, M (nC, and room for kChunk more) to L below the diagonal and D on it; `inverse` (nv) gets 1 / D. The columns
// of a dof's row are the first ones of the rows of all dofs below, so these need no look-up.
template <class T>
void factorize_sparse(const System& s, Vec<T>* m, Vec<T>* inverse) {
  for (int64_t i = s.nv; i-- > 0;) {
    const int64_t own = s.M_rownnz[i] - 1;
    for (int64_t first = 0; first <= own; first += kChunk) {
      eliminate_chunk<T>(s, m, inverse, i, first, int(std::min<int64_t>(own + 1 - first, kChunk)));
    }
    Vec<T>& diagonal = m[s.M_rowadr[i] + own];
    diagonal = floor_at<T>(diagonal, kMinVal<T>);
    inverse[i] = T(1) / diagonal;
  }
  for (int64_t i = 0; i < s.nv; ++i) {
    for (int64_t e = 0; e + 1 < s.M_rownnz[i]; ++e) m[s.M_rowadr[i] + e] *= inverse[i];
  }
}

// In place, x to the solution of L' D L x = b.
template <class T>
void substitute_sparse(const System& s, const Vec<T>* factor, const Vec<T>* inverse, Vec<T>* x) {
  for (int64_t i = s.nv; i-- > 0;) {
    const int64_t first = s.M_rowadr[i], diagonal = first + s.M_rownnz[i] - 1;
    for (int64_t e = first; e < diagonal; ++e) x[s.M_colind[e]] -= factor[e] * x[i];
  }
  for (int64_t i = 0; i < s.nv; ++i) x[i] *= inverse[i];
  for (int64_t i = 0; i < s.nv; ++i) {
    const int64_t first = s.M_rowadr[i], diagonal = first + s.M_rownnz[i] - 1;
    for (int64_t e = first; e < diagonal; ++e) x[i] -= factor[e] * x[s.M_colind[e]];
  }
}

// y = M x, with zeros from nv to `padded`
template <class T>
void multiply_sparse(const System& s, const Vec<T>* mass, const Vec<T>* x, Vec<T>* y, int padded) {
  for (int64_t i = s.nv; i < padded; ++i) y[i] = Vec<T>{};
  for (int64_t i = 0; i < s.nv; ++i) {
    const int64_t first = s.M_rowadr[i], diagonal = first + s.M_rownnz[i] - 1;
    Vec<T> sum = mass[diagonal] * x[i];
    for (int64_t e = first; e < diagonal; ++e) {
      sum += mass[e] * x[s.M_colind[e]];
      y[s.M_colind[e]] += mass[e] * x[i];
    }
    y[i] = sum;
  }
}

}  // namespace
