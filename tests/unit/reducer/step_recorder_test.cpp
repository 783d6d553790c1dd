#include "reducer/step_recorder.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mark = RecordedStep::Mark;

TEST(StepRecorder, R24KnowsWhereARecordedStepFindsEachGradient) {
  ReducerParts parts;
  GradientMarks& marks = parts.state.marks;
  marks.mark_micro_step(0, false);  // before the recording
  StepRecorder recorder;
  RecordedStep step;
  recorder.begin(step, marks);
  marks.mark_micro_step(1, true);
  recorder.mark_micro_step(1, true);
  marks.mark(2, 0);
  recorder.end_step(marks);
  EXPECT_TRUE(recorder.note_update());
  EXPECT_FALSE(recorder.note_update());
  recorder.check();
  marks.forget();
  EXPECT_EQ(&recorder.end(marks), &step);
  EXPECT_TRUE(step.sends);
  EXPECT_TRUE(step.updates);
  EXPECT_THAT(step.marks, ElementsAre(Mark::before, Mark::elsewhere, Mark::here));
  EXPECT_THAT(marks.used(), ElementsAre(1, 0, 0)) << "as before the recording";
}

TEST(StepRecorder, R24MicroStepsAloneAreAStepThatSendsNothing) {
  ReducerParts parts;
  StepRecorder recorder;
  RecordedStep step;
  recorder.begin(step, parts.state.marks);
  EXPECT_THAT(message_of([&] { recorder.check(); }), HasSubstr("found 0 and no gradients"));
  recorder.mark_micro_step(0, false);
  recorder.check();
  EXPECT_FALSE(recorder.end(parts.state.marks).sends);
}

TEST(StepRecorder, R24TwoStepsInOneRecordingAreRefused) {
  ReducerParts parts;
  StepRecorder recorder;
  RecordedStep step;
  recorder.begin(step, parts.state.marks);
  recorder.end_step(parts.state.marks);
  recorder.end_step(parts.state.marks);
  EXPECT_THAT(message_of([&] { recorder.check(); }), HasSubstr("found 2 calls"));
}

}  // namespace
}  // namespace ddp::testing
