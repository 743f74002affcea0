// The joint-space inertia in MuJoCo's sparse form: of row i the dofs that move with dof i, itself last (M_rowadr,
// M_rownnz, M_colind). Its factor L' D L fills no new elements, since the ancestors of an ancestor are ancestors.

#pragma once

#include "simd.h"
#include "structure.h"

namespace {

// M[i, j] = cdof_j . crb(body of i) cdof_i, plus armature, of crb (10, nbody, B), cdof (6, nv, B), armature (nv).
template <class T>
void mass_matrix(const System& s, const T* crb, const T* cdof, const T* armature, T* mass, int64_t worlds,
                 int64_t world, int count) {
  for (int64_t i = 0; i < s.nv; ++i) {
    Vec<T> I[10], v[6];
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
      const T* axis = cdof + s.M_colind[e] * worlds + world;
      Vec<T> sum = e + 1 == last ? fill<T>(armature[i]) : Vec<T>{};
      for (int k = 0; k < 6; ++k) sum += load<T>(axis + k * s.nv * worlds, count) * f[k];
      store<T>(mass + e * worlds + world, sum, count);
    }
  }
}

// In place, M (nC) to L below the diagonal and D on it; `inverse` (nv) gets 1 / D.
template <class T>
void factorize_sparse(const System& s, Vec<T>* m, Vec<T>* inverse) {
  for (int64_t k = s.nv; k-- > 0;) {
    Vec<T>* row = m + s.M_rowadr[k];
    const int64_t diagonal = s.M_rownnz[k] - 1;
    row[diagonal] = floor_at<T>(row[diagonal], kMinVal<T>);
    inverse[k] = T(1) / row[diagonal];
    for (int64_t e = diagonal; e-- > 0;) {  // ancestors of k, the nearest first
      const Vec<T> scale = row[e] * inverse[k];
      Vec<T>* above = m + s.M_rowadr[s.M_colind[s.M_rowadr[k] + e]];
      for (int64_t c = 0; c <= e; ++c) above[c] -= scale * row[c];
      row[e] = scale;
    }
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
