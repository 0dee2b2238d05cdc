package admin

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// The forms of the output of env.
const (
	envShell  = "shell"
	envDotenv = "dotenv"
	envJSON   = "json"
)

func envVerb() *cli.Verb {
	return &cli.Verb{
		Name: "admin env",
		Options: append([]*cli.Option{
			{Name: "namespace", Letter: "n", Arg: "NAMESPACE", Def: "default", Group: "Which Services", Usage: "namespace of the Services"},
			cli.OutputOption(envShell, envDotenv, envJSON),
		}, settings.ConnectOptions()...),
		Command: true,
		Run:     runEnv,
	}
}

// runEnv prints the variables, or becomes a command that has them.
func runEnv(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	if len(args) > 0 && v.Option("output").IsSet() {
		return cli.Usagef("env: -o is about what is printed, and with a command nothing is: leave one of them out")
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	environment, err := client.Call(ctx, c, wire.GetEnvironment, wire.EnvironmentQuery{Namespace: v.Option("namespace").Text()})
	if err != nil {
		return err
	}
	if len(args) > 0 {
		return become(env, args, environment.Variables)
	}
	return printVariables(env, v.Option("output").Text(), environment.Variables)
}

// become replaces this process by a command. It only returns when it cannot.
func become(p *cli.Env, args []string, variables []wire.Variable) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	ours := map[string]bool{}
	var env []string
	for _, variable := range variables {
		ours[variable.Name] = true
		env = append(env, variable.Name+"="+variable.Value)
	}
	for _, pair := range p.Environ() {
		if name, _, _ := strings.Cut(pair, "="); !ours[name] {
			env = append(env, pair)
		}
	}
	if err := p.Exec(path, args, env); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

// variableName matches the names of shell variables (POSIX.1-2024, 3.216).
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// printVariables prints the variables. Their values are addresses, ports and URLs of
// these: no shell finds anything special in an assignment of one.
func printVariables(env *cli.Env, form string, variables []wire.Variable) error {
	if form == envJSON {
		all := make(map[string]string, len(variables))
		for _, variable := range variables {
			all[variable.Name] = variable.Value
		}
		text, err := output.JSON(all)
		if err != nil {
			return err
		}
		return env.Print(text)
	}
	var b, names strings.Builder
	for _, variable := range variables {
		if !variableName.MatchString(variable.Name) {
			fmt.Fprintf(env.Err, "svcctl: %s is left out: a shell takes no name that begins with a digit\n", variable.Name)
			continue
		}
		fmt.Fprintf(&b, "%s=%s\n", variable.Name, variable.Value)
		names.WriteString(" " + variable.Name)
	}
	if form == envShell && names.Len() > 0 {
		b.WriteString("export" + names.String() + "\n")
	}
	return env.Print(b.String())
}
