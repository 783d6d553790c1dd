// R23 with PyTorch's tensors.
#include <ATen/DLConvertor.h>
#include <ATen/dlpack.h>

#include "ddp/device/dlpack.hpp"
#include "ddp/device/memory.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

TEST(LibtorchDlpack, R23PyTorchSeesTheMemoryOfATensorAndKeepsIt) {
  auto const alive = std::make_shared<int>(0);
  ddp::Tensor const memory = ddp::zeros(Shape{2, 3}, DType::f32, world().device());
  auto theirs = at::fromDLPack(to_dlpack(ddp::Tensor(memory.view(), alive)));
  EXPECT_EQ(alive.use_count(), 2);
  EXPECT_EQ(theirs.device(), libtorch::device(world()));
  EXPECT_EQ(theirs.data_ptr(), memory.view().data);
  EXPECT_EQ(theirs.sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(theirs.sum().item<float>(), 0.0F);
  theirs = torch::Tensor();
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(LibtorchDlpack, R23ATensorSeesPyTorchsMemoryAndKeepsIt) {
  auto const options = torch::TensorOptions(libtorch::device(world()));
  for (auto const type : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
                          torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    auto theirs = torch::ones({4, 5}, options.dtype(type));
    ddp::Tensor ours = from_dlpack(at::toDLPack(theirs));
    EXPECT_EQ(theirs.use_count(), 2U);
    EXPECT_EQ(ours.view().data, theirs.data_ptr());
    EXPECT_EQ(ours.view().shape, (Shape{4, 5}));
    EXPECT_EQ(ours.view().device.kind, world().device().kind);
    EXPECT_EQ(ours.view().bytes(), theirs.nbytes());
    ours = ddp::Tensor();
    EXPECT_EQ(theirs.use_count(), 1U);
  }
}

TEST(LibtorchDlpack, R23WhatATensorCannotBeIsRefused) {
  auto const rows = torch::ones({4, 5}, torch::TensorOptions(libtorch::device(world())));
  EXPECT_THAT(message_of([&] { static_cast<void>(from_dlpack(at::toDLPack(rows.t()))); }),
              HasSubstr("make the array contiguous first"));
  EXPECT_EQ(rows.use_count() + rows.storage().use_count(), 2U) << "what was refused was not let go";
}

}  // namespace
}  // namespace ddp::testing
