// Package checkup finds settings of a host that keep Services from working: those of its
// kernel, the fill of the connection tracking table, rules of other programs.
//
// Read collects facts; Examine judges them and is pure. Both are cheap enough to be
// repeated every few seconds.
//
// The package must not change anything: no setting, no rule, no module. Every Finding
// that is not OK has advice.
//
//	facts, err := checkup.Read("/proc")
//	for _, f := range checkup.Examine(&facts) {
//		fmt.Println(f.Level, f.Check, f.Message, f.Advice)
//	}
package checkup
