// Package budget tests PodUnavailableBudgets on a real control plane. Its watcher shares no code with the model.
//
// The tests of each case:
//
//	 1  concurrent operations, several webhook servers    TestNoStormOfOperationsTakesMoreThanTheBudget, TestTwoHundredDeletionsAreDecidedWithinTwoSeconds
//	 2  collections                                       TestACollectionIsDeletedAsFarAsTheBudgetGoes
//	 3  one request that is reviewed twice                TestAnOperationThatIsReviewedTwiceIsRecordedOnce
//	 4  deletions without grace, pods without a node      TestDeletionsWithoutGrace; without the webhook: case 5
//	 5  no webhook, and the break-glass                   TestWithoutAWebhookOnlyVoluntaryDisruptionOfProtectedPodsIsRefused, test/integration;
//	                                                      the table of docs/operations/failure-modes.md: TestWhatGoesOnDuringAnOutage
//	 6  a storm of conflicts                              TestAConflictStormOnTheStatusCostsTimeAndNoPods
//	 7  frozen caches, a controller that lags             TestAWebhookWhoseCacheIsFrozenCountsRight, TestAControllerThatLagsGivesNothingBack
//	 8  a killed controller, the longest request          TestAnApprovalOutlivesADelayAndTheControllerThatSawIt
//	 9  clocks minutes apart                              all tests: see skews; the controller uses its own clock for expiry
//	10  a new pod with a previous name                    TestANewPodOfAnOldNameNeedsRoomOfItsOwn
//	11  ready between answer and deletion                 TestAPodThatBecomesReadyAfterItWasGivenAwayDoesNotCount
//	12  budget, replicas, owners and labels that change   TestTheBudgetHoldsWhileItAndItsWorkloadChange, TestScalingAndDeletingTheWorkloadIsNotHeldUp,
//	                                                      TestOrphansAndPodsThatChangeHandsStayCounted
//	13  dry runs                                          TestADryRunTakesNothing
//	14  allowed operations that do not happen             TestAnApprovalThatIsNotUsedExpires
//	15  kubectl drain                                     TestWhichDrainsEnd, TestADrainCompletesByItself, TestARolloutGoesOnBesideADrainThatTriesAgain; the binaries: test/integration
//	16  preemption                                        TestPreemption…, TestTheDefaultSchedulerCannotPreemptWithoutRoom
//	17  NoExecute taints                                  TestATaintTakesNoMoreThanTheBudget, TestATaintTakesPodsThatDoNotServe
//	18  a node that no longer exists                      TestThePodsOfANodeThatIsGoneAreCollected
//	19  updates that restart, and those that do not       TestOnlyUpdatesThatDisruptNeedRoom
//	20  an API server that fails                          TestErrorsThatPassDoNotEndADrain
//	21  updaters that make pods unready first             TestUpdatesInPlaceTakeTheirTurns, TestNoStormOfUpdatesInPlaceTakesMoreThanTheBudget
//	22  who else writes the status of pods                TestWhoMayWriteThatAPodIsNotReady, TestAPodOfALostNodeCountsAsUnavailable
//	23  what users of OpenKruise do to pods               TestALabelTakesAPodOutOfService, TestWhoExemptsAPodIsLetThrough
//	24  what an operation costs                           TestWhatAnOperationCosts, TestUnderLoadAnAnswerCostsAtMostOneRead, TestAnAllowedDeletionBesideTheRequestsThatItNeeds
//	25  a new pod that is made first                      TestADrainOfTheOnlyPodMakesANewOneFirst, TestTwoDrainsAtOnceReplaceAllPods, TestAPodWhoseReplacementDoesNotStartIsTakenBack,
//	                                                      TestAQuotaThatForbidsASecondPodLosesNone, TestWhatHappensWhileAPodIsReplacedFirst, TestWhoMayHandAPodOver,
//	                                                      TestATaintHasANewPodMadeFirst, TestTheVolumeOfAPodDecidesWhetherItIsReplacedFirst,
//	                                                      TestAPodOfTwoBudgetsIsReplacedFirst, TestASubsetWithoutRoomHasANewPodMadeFirst
//	26  zones                                             TestZonesAreDrainedOneAfterTheOther, TestNoStormTakesPodsOfTwoZones, TestTheZoneOfANodeIsASubset
//	27  a PodDisruptionBudget beside the budget           TestAPodDisruptionBudgetIsKeptBesideTheBudget
//
// Without -long, the cases that depend on Kubernetes timeouts run with shorter timeouts.
package budget
