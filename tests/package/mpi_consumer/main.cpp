// A World of half of the ranks of a program that uses MPI itself: through an installed library.
#include <cstdio>
#include <ddp/ddp.hpp>
#include <ddp/mpi.hpp>

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2 == 1 ? 0 : MPI_UNDEFINED, 0, &half);
  if (rank % 2 == 1) {
    ddp::World const world = ddp::init_world(half);
    bool const right = world.all_reduce_scalar(rank) == 1 + 3;
    std::printf("version %s\nrank %d of %d: %s\n", DDP_VERSION, world.rank().value(), world.size(),
                right ? "right" : "wrong");
  }
  MPI_Finalize();
  return 0;
}
