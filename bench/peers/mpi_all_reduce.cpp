// The same work as `ddp-bench all-reduce`, by an MPI library: in-place sums of f32, the slowest rank counts.
//
// Not part of the build:  mpicxx -O2 bench/peers/mpi_all_reduce.cpp -o mpi_all_reduce
//                         mpirun -np 2 --bind-to none ./mpi_all_reduce
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  constexpr std::size_t kLargest = std::size_t{256} << 20;
  constexpr std::size_t kBytesPerBatch = std::size_t{64} << 20;
  constexpr int kRounds = 11;
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<float> data(kLargest / sizeof(float));
  for (std::size_t bytes = 1024; bytes <= kLargest; bytes *= 4) {
    auto const repeats = std::clamp<std::size_t>(kBytesPerBatch / bytes, 1, 2000);
    auto const count = static_cast<int>(bytes / sizeof(float));
    std::vector<double> us;
    for (int round = 0; round <= kRounds; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      double const begin = MPI_Wtime();
      for (std::size_t i = 0; i < repeats; ++i) {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      }
      double const mine = (MPI_Wtime() - begin) * 1e6 / static_cast<double>(repeats);
      double slowest = 0;
      MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (round > 0) us.push_back(slowest);  // the first one warms up
    }
    std::nth_element(us.begin(), us.begin() + kRounds / 2, us.end());
    if (rank == 0) std::printf("%12zu B %12.2f us\n", bytes, us[kRounds / 2]);
  }
  MPI_Finalize();
}
