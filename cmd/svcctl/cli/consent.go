package cli

import (
	"bufio"
	"fmt"
	"strings"
)

// errDeclined means that the answer to a question was not yes.
var errDeclined = fmt.Errorf("nothing was changed")

// YesOption is --yes, of each verb that asks.
func YesOption() *Option {
	return &Option{Name: "yes", Letter: "y", Group: GroupHow, Usage: "do not ask; required without a terminal if there is a question"}
}

// Consent asks before a change that cannot be undone without loss; the consequence is a clause, as "this removes
// 1 Service". It returns nil with --yes, errDeclined after another answer than yes, and a usageError without a terminal.
func (env *Env) Consent(v *Verb, consequence string) error {
	switch {
	case v.Option("yes").On():
		return nil
	case !env.StdinTTY:
		return Usagef("%s: %s; repeat it with --yes", v.Name, consequence)
	case !env.confirm(strings.ToUpper(consequence[:1]) + consequence[1:] + ". Go on?"):
		return errDeclined
	}
	return nil
}

// confirm asks a question on stderr; the answer is no unless it is yes.
func (env *Env) confirm(question string) bool {
	fmt.Fprintf(env.Err, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(env.In).ReadString('\n') // what came before the end counts
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}
