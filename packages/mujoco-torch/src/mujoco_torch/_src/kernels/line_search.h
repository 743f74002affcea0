// The exact line search of newton.py.

#pragma once

#include <limits>

#include "penalty.h"

namespace {

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
template <class T, bool general, int n>
void evaluate(const Line<T>& line, const Vec<T>* alpha, Point<T>* out) {
  const Rows<T>& rows = *line.rows;
  Vec<T> cost[n] = {}, slope[n] = {}, curvature[n] = {};
  for (int k = 0; k < rows.plain; ++k) {
    const Vec<T> start = rows.residual[k], rate = rows.rate[k], weight = rows.weight[k];
    const Vec<T> below_start = within<T, general>(rows, k, start), pull = weight * rate, stiff = pull * rate;
    for (int e = 0; e < n; ++e) {
      const Vec<T> residual = start + alpha[e] * rate;
      const Vec<T> below = within<T, general>(rows, k, residual);
      cost[e] += weight * (below - below_start) * (below + below_start);
      if (general) {  // beyond its bounds a row's cost is linear
        cost[e] += T(2) * weight * (below * (residual - below) - below_start * (start - below_start));
      }
      slope[e] += pull * below;
      curvature[e] += is_stiff<T, general>(rows, k, residual) ? stiff : Vec<T>{};
    }
  }
  if (general) {
    for (int c = 0; c < rows.cones; ++c) {
      for (int e = 0; e < n; ++e) evaluate_cone<T>(rows, c, alpha[e], &cost[e], &slope[e], &curvature[e]);
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
template <class T, bool general>
void bracket(const Line<T>& line, const Point<T>& start, Point<T> near, Point<T> far, Vec<T> tolerance,
             Mask<T> searching, Mask<T> evaluations, int limit, Point<T>& result) {
  Point<T> found[3];
  Vec<T> alpha[3] = {newton_step(near), T(0.5) * (near.alpha + far.alpha)};
  evaluate<T, general, 2>(line, alpha, found);
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
    evaluate<T, general, 3>(line, alpha, found);
    candidates[0] = pick<T>(near_moved, found[0], candidates[0]);
    candidates[1] = pick<T>(far_moved, found[1], candidates[1]);
    candidates[2] = found[2];
    evaluations -= (searching & near_moved) + (searching & far_moved);
  }
}

// Step of least cost along the line; the start where `done` or where nothing better is found.
template <class T, bool general>
Point<T> search_line(const Line<T>& line, Vec<T> tolerance, Mask<T> done, int limit) {
  Point<T> start, first;
  if (general) prepare_cones<T>(*line.rows);
  Vec<T> alpha = {};
  evaluate<T, general, 1>(line, &alpha, &start);
  const Vec<T> rows = row_cost<T, general>(*line.rows, line.rows->residual);
  const Vec<T> terms = square_root<T>(rows * floor_at<T>(start.curvature - T(2) * line.quadratic, T(0))) +
                       absolute<T>(line.linear);
  const Vec<T> noise = T(8) * std::numeric_limits<T>::epsilon() * terms;
  tolerance = tolerance > noise ? tolerance : noise;

  alpha = newton_step(start);
  evaluate<T, general, 1>(line, &alpha, &first);
  Point<T> result = pick<T>(done, start, first);
  Mask<T> evaluations = Mask<T>{} + 2;
  Mask<T> searching = ~done & (absolute<T>(first.slope) >= tolerance) & (evaluations < limit);
  const Mask<T> rising = first.slope < 0;

  Point<T> near = first, far = first;
  Mask<T> bracketed = {};
  while (any<T>(searching)) {
    Point<T> trial;
    alpha = newton_step(near);
    evaluate<T, general, 1>(line, &alpha, &trial);
    far = pick<T>(searching, near, far);
    near = pick<T>(searching, trial, near);
    evaluations -= searching;
    result = pick<T>(searching, near, result);
    const Mask<T> going = searching & (absolute<T>(near.slope) >= tolerance) & (evaluations < limit);
    searching = going & ((rising ? near.slope : -near.slope) <= -tolerance);
    bracketed |= going & ~searching;
  }
  if (any<T>(bracketed)) bracket<T, general>(line, start, near, far, tolerance, bracketed, evaluations, limit, result);
  return result;
}

}  // namespace
