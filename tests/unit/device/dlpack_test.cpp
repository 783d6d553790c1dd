// R23, with the DLPack header that this machine has.
#include "ddp/device/dlpack.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Dlpack, R23ATensorLivesUntilTheOtherLibraryLetsGo) {
  auto const alive = std::make_shared<int>(0);
  std::vector<float> elements{1, 2, 3, 4, 5, 6};
  TensorView view = view_of(std::span(elements));
  view.shape = Shape{2, 3};
  DLManagedTensor* managed = nullptr;
  {
    Tensor const tensor(view, alive);
    managed = to_dlpack(tensor);
  }
  EXPECT_EQ(alive.use_count(), 2);
  DLTensor const& made = managed->dl_tensor;
  EXPECT_EQ(made.data, elements.data());
  EXPECT_EQ(made.ndim, 2);
  EXPECT_THAT(std::vector<std::int64_t>(made.shape, made.shape + 2), ElementsAre(2, 3));
  EXPECT_THAT(std::vector<std::int64_t>(made.strides, made.strides + 2), ElementsAre(3, 1));
  EXPECT_EQ(made.device.device_type, kDLCPU);
  EXPECT_EQ(made.byte_offset, 0U);
  managed->deleter(managed);
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(Dlpack, R23EveryTypeAndShapeComesBackAsItWent) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    auto const dtype = static_cast<DType>(i);
    for (Shape const& shape :
         {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{4, 1, 5}, Shape{1, 1, 1, 1, 1, 1, 1, 2}}) {
      Tensor const tensor = Tensor::zeros(shape, dtype);
      Tensor const back = from_dlpack(to_dlpack(tensor));
      EXPECT_EQ(back.view().dtype, dtype);
      EXPECT_EQ(back.view().shape, shape);
      EXPECT_EQ(back.view().device, tensor.view().device);
      if (shape.count() != 0) {
        EXPECT_EQ(back.view().data, tensor.view().data);
      }
    }
  }
}

// What another library might hand over; counts calls of its deleter.
struct Foreign {
  Foreign() {
    tensor.dl_tensor.data = elements.data();
    tensor.dl_tensor.device = {kDLCPU, 0};
    tensor.dl_tensor.ndim = 2;
    tensor.dl_tensor.dtype = {kDLFloat, 32, 1};
    tensor.dl_tensor.shape = shape.data();
    tensor.dl_tensor.strides = nullptr;
    tensor.dl_tensor.byte_offset = 0;
    tensor.manager_ctx = this;
    tensor.deleter = [](DLManagedTensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
  }
  std::vector<float> elements = std::vector<float>(12, 7.0F);
  std::vector<std::int64_t> shape{2, 3};
  std::vector<std::int64_t> strides{3, 1};
  DLManagedTensor tensor{};
  int deleted = 0;
};

TEST(Dlpack, R23TheLastCopyOfATensorLetsGo) {
  Foreign foreign;
  foreign.tensor.dl_tensor.byte_offset = 4 * sizeof(float);
  {
    Tensor copy;
    {
      Tensor const tensor = from_dlpack(&foreign.tensor);
      EXPECT_EQ(tensor.view().data, foreign.elements.data() + 4);
      EXPECT_EQ(tensor.as<float>().size(), 6U);
      copy = tensor;
    }
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
  foreign.tensor.deleter = nullptr;  // as for memory that nobody frees
  EXPECT_EQ(from_dlpack(&foreign.tensor).as<float>()[0], 7.0F);
}

TEST(Dlpack, R23StridesOfAxesWithOneElementOrNoneMeanNothing) {
  Foreign foreign;
  foreign.shape = {1, 3};
  foreign.strides = {99, 1};
  foreign.tensor.dl_tensor.shape = foreign.shape.data();
  foreign.tensor.dl_tensor.strides = foreign.strides.data();
  EXPECT_EQ(from_dlpack(&foreign.tensor).view().count(), 3U);
  foreign.shape = {0, 3};
  foreign.strides = {5, 5};
  foreign.tensor.dl_tensor.data = nullptr;
  EXPECT_EQ(from_dlpack(&foreign.tensor).view().count(), 0U);
  EXPECT_EQ(foreign.deleted, 2);
}

TEST(Dlpack, R23WhatATensorCannotBeIsRefusedAndLetGo) {
  struct Case {
    std::function<void(Foreign&)> spoil;
    std::string message;
  };
  std::vector<Case> const cases{
      {[](Foreign& f) {
         f.strides = {1, 2};  // transposed
         f.tensor.dl_tensor.strides = f.strides.data();
       },
       "expected row-major elements without gaps, found [2,3] with a stride of 2 instead of 1 along axis 1"},
      {[](Foreign& f) {
         f.shape.assign(9, 1);
         f.tensor.dl_tensor.shape = f.shape.data();
         f.tensor.dl_tensor.ndim = 9;
       },
       "expected at most 8 dimensions, found 9"},
      {[](Foreign& f) { f.tensor.dl_tensor.dtype.lanes = 4; }, "of 32 bits and 4 lanes"},
      {[](Foreign& f) {
         f.tensor.dl_tensor.dtype = {5, 64, 1};
       },
       "found DLPack's type code 5 of 64 bits"},
      {[](Foreign& f) {
         f.tensor.dl_tensor.dtype = {kDLUInt, 32, 1};
       },
       "type code 1 of 32 bits"},
      {[](Foreign& f) {
         f.tensor.dl_tensor.device = {kDLMetal, 0};
       },
       "found DLPack's device type 8 number 0"},
      {[](Foreign& f) {
         f.tensor.dl_tensor.device = {kDLCUDA, 77};
       },
       "device type 2 number 77"},
      {[](Foreign& f) { f.tensor.dl_tensor.data = nullptr; }, "a null pointer for [2,3]"},
      {[](Foreign& f) { f.shape[1] = -1; }, "axis 1 has the extent -1"},
  };
  for (Case const& each : cases) {
    Foreign foreign;
    each.spoil(foreign);
    EXPECT_THAT(message_of([&] { static_cast<void>(from_dlpack(&foreign.tensor)); }),
                HasSubstr(each.message));
    EXPECT_EQ(foreign.deleted, 1) << each.message;
  }
  EXPECT_THAT(message_of([] { static_cast<void>(from_dlpack(nullptr)); }), HasSubstr("a null pointer"));
}

}  // namespace
}  // namespace ddp::testing
