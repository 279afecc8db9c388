// y = x^T in tiles of 16 by 16 through shared memory, several tiles a block, so that the tile is
// used again: one barrier after it is filled and one before it is filled again.
#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(64)
transpose(MDF_IN(mdf::i32) x, MDF_OUT(mdf::i32) y, mdf::i64 rows, mdf::i64 columns) {
  MDF_SHARED(mdf::i32, tile, 16 * 17);
  const int column = int(threadIdx.x) % 16;
  const int row = int(threadIdx.x) / 16;
  const mdf::i64 row0 = mdf::i64(blockIdx.x) * 16;
  for (mdf::i64 column0 = 0; column0 < columns; column0 += 16) {
    for (int r = row; r < 16; r += 4) {
      if (MDF_IN_BOUNDS(row0 + r < rows && column0 + column < columns)) {
        tile[r * 17 + column] = mdf::load1(x, (row0 + r) * columns + column0 + column);
      }
    }
    mdf::barrier();
    for (int r = row; r < 16; r += 4) {
      if (MDF_IN_BOUNDS(row0 + column < rows && column0 + r < columns)) {
        mdf::store1(y, (column0 + r) * rows + row0 + column, tile[column * 17 + r]);
      }
    }
    mdf::barrier();
  }
}
