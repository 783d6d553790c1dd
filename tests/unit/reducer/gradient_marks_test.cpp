#include "reducer/buckets/gradient_marks.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GradientMarks, R1BucketsAreCompleteInTheirOrder) {
  ReducerParts parts;
  GradientMarks& marks = parts.state.marks;
  marks.mark(0, 0);
  EXPECT_EQ(marks.complete(), 0U);
  marks.mark(2, 0);
  marks.mark(1, 0);
  EXPECT_EQ(marks.complete(), 2U);
  EXPECT_THAT(marks.used(), ElementsAre(1, 1, 1));
  EXPECT_THAT(marks.arrival_order(), ElementsAre(0, 2, 1));
}

TEST(GradientMarks, R8OneTooManyNamesParameterStepAndAdvice) {
  ReducerParts parts;
  parts.state.marks.mark(1, 7);
  EXPECT_THAT(message_of([&] { parts.state.marks.mark(1, 7); }),
              AllOf(HasSubstr("\"p1\" was marked ready twice in synchronised step 7"),
                    HasSubstr("allow_repeated_ready")));
  EXPECT_THAT(message_of([&] { parts.state.marks.skip(1, 7); }),
              HasSubstr("no_gradient() for parameter 1 \"p1\" after gradient_ready()"));
}

TEST(GradientMarks, R8TheFirstStepTeachesHowOftenAndALaterOneThatDiffersIsRefused) {
  ReducerParts parts(2, {.allow_repeated_ready = true});
  GradientMarks& marks = parts.state.marks;
  for (std::size_t const p : {0U, 1U, 1U, 2U}) marks.mark(p, 0);
  marks.finish(0);
  marks.end_step(parts.state.buckets.plan());
  for (std::size_t const p : {0U, 1U, 2U}) marks.mark(p, 1);
  EXPECT_THAT(
      message_of([&] { marks.finish(1); }),
      HasSubstr("\"p1\" was marked ready 1 times in synchronised step 1, the first step marked it 2"));
}

TEST(GradientMarks, R6R22ASumElsewhereMustBeGivenInTheStepThatSendsIt) {
  ReducerParts parts;
  GradientMarks& marks = parts.state.marks;
  marks.mark_micro_step(0, /*elsewhere=*/true);
  EXPECT_THAT(message_of([&] { marks.finish(3); }), HasSubstr("which sends the sum"));
  marks.forget();
  marks.finish(3);
  EXPECT_THAT(marks.used(), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace ddp::testing
