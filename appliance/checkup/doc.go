// Package checkup tells what of a host keeps Services from working: settings of its
// kernel, the fill of the connection tracking table, rules of other programs.
//
// Read collects facts; Examine judges them and is pure. Both are cheap enough to be
// repeated every few seconds.
//
// The package must not change anything: no setting, no rule, no module. Every Finding
// that is not OK says what to do.
//
//	facts, err := checkup.Read("/proc")
//	for _, f := range checkup.Examine(&facts) {
//		fmt.Println(f.Level, f.Check, f.Message, f.Advice)
//	}
package checkup
