// Package cli is the frame of the verbs of svcctl: a Verb with its flags (Option), arguments and help, the Env that it
// runs in (streams, environment, clock, client), exit codes, the order of arguments (NormalizeArgs), questions
// and progress.
//
// A verb is a value of Verb whose Run is func(ctx, env, verb, args). Run prints to env.Out, and its error
// becomes lines on stderr and the exit code: Usagef 2, an unreachable appliance 3, any other 1.
//
// It names no verb, and reads no setting of the appliance.
//
//	v := &cli.Verb{Name: "version", Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
//		return env.Print(env.Version + "\n")
//	}}
package cli
