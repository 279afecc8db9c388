// A tile of shared memory that one side fills along one axis and the other reads along the other.
//
// The tile has rows of ROW elements: `b` counts rows, `a` stands along a row. One side moves whole
// vectors along a row. The other has vectors down the rows: a few of them, side by side, make
// pieces of up to 4 bytes of each row, and it moves those.
//
// Elements lie in units of 4 bytes (of one element, where that is larger), of which a line of all
// banks has LINE. Within its line a unit's place is turned by its row and by its line, in steps of
// GRAIN units, so that the lanes of a warp that move the same part of their vectors at once meet in
// no bank:
//   GRAIN of 16 bytes  vectors along a row stay whole; DEPTH rows are one vector of the other side,
//                      of which 8 lanes lie side by side, with the lanes of 4 pieces
//   GRAIN 1            for another side of single elements (DEPTH 1), 32 lanes side by side
// LANES: how many lanes lie side by side along a row.
#pragma once

#include "memory.cuh"

namespace mdf {

template <class T, int ROW, int DEPTH, int GRAIN, int LANES>
struct Tile {
  static constexpr int UNIT = sizeof(T) < 4 ? 4 / int(sizeof(T)) : 1;
  static constexpr int LINE = 128 / (UNIT * int(sizeof(T)));
  static constexpr int STEPS = LINE / GRAIN;
  static constexpr int FOLD = GRAIN > 1 || LANES >= LINE ? 1 : LINE / LANES;
  static_assert(ROW % (UNIT * LINE) == 0, "a row has whole lines of banks");

  // Where element a of row b stands.
  static MDF_DEVICE i32 at(i32 b, i32 a) {
    const i32 unit = a / UNIT;
    const i32 turn = ((b / DEPTH) ^ (unit / LINE * FOLD)) % STEPS * GRAIN;
    return b * ROW + (unit ^ turn) * UNIT + a % UNIT;
  }

  // V elements of row b from element a on, a multiple of V.
  template <int V, class S>
  static MDF_DEVICE Vec<T, V> row(S tile, i32 b, i32 a MDF_SITE) {
    constexpr int PIECE = V < GRAIN * UNIT ? V : GRAIN * UNIT;
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; k += PIECE) {
      const Vec<T, PIECE> piece = load<PIECE>(tile, at(b, a + k) MDF_PASS);
#pragma unroll
      for (int j = 0; j < PIECE; ++j) out.v[k + j] = piece.v[j];
    }
    return out;
  }
  template <int V, class S>
  static MDF_DEVICE void set_row(S tile, i32 b, i32 a, const Vec<T, V>& value MDF_SITE) {
    constexpr int PIECE = V < GRAIN * UNIT ? V : GRAIN * UNIT;
#pragma unroll
    for (int k = 0; k < V; k += PIECE) {
      Vec<T, PIECE> piece;
#pragma unroll
      for (int j = 0; j < PIECE; ++j) piece.v[j] = value.v[k + j];
      store(tile, at(b, a + k), piece MDF_PASS);
    }
  }

  // P vectors down the rows, side by side: element j of vector p is element a + p of row b + j.
  template <int P, int V, class S>
  static MDF_DEVICE void columns(S tile, i32 b, i32 a, Vec<T, V> (&out)[P] MDF_SITE) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Vec<T, P> piece = load<P>(tile, at(b + j, a) MDF_PASS);
#pragma unroll
      for (int p = 0; p < P; ++p) out[p].v[j] = piece.v[p];
    }
  }
  template <int P, int V, class S>
  static MDF_DEVICE void set_columns(S tile, i32 b, i32 a, const Vec<T, V> (&in)[P] MDF_SITE) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      Vec<T, P> piece;
#pragma unroll
      for (int p = 0; p < P; ++p) piece.v[p] = in[p].v[j];
      store(tile, at(b + j, a), piece MDF_PASS);
    }
  }
};

}  // namespace mdf
