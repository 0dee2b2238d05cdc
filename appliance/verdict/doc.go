// Package verdict judges the problems of the appliance: which Services answer their clients, which conditions their
// objects have, how severe each problem is, and which problems have one cause. status, wait, apply --wait, rollouts,
// explain, the dashboard, metrics and .status.conditions show its results, and judge nothing themselves.
//
// It is pure: problems in, Judgement out. The facts are found where they are (appliance/resolve, appliance/parts,
// store, watch), and reported as problems with a Reason; table.txt has a row for each Reason.
package verdict
