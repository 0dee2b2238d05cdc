package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

// output prints v in the form that the verb's -o asks for; text makes the form for
// people. A form that does not exist is a usageError.
func (p *program) output(vb *verb, v any, text func() string) error {
	if err := checkOutput(vb); err != nil {
		return err
	}
	switch vb.option("output").text() {
	case formJSON:
		body, err := output.JSON(v)
		if err != nil {
			return err
		}
		return p.print(body)
	case formYAML:
		return p.printYAML(v)
	}
	return p.print(text())
}

// printYAML prints v as YAML.
func (p *program) printYAML(v any) error {
	body, err := manifest.YAML(v)
	if err != nil {
		return err
	}
	return p.print(string(body))
}

// printLine prints v as a line of JSON, for verbs that print one document after another.
func (p *program) printLine(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode as JSON: %w", err)
	}
	return p.print(string(body) + "\n")
}

// checkOutput judges the verb's -o.
func checkOutput(vb *verb) error {
	o := vb.option("output")
	if !slices.Contains(o.words, o.text()) {
		return usagef("-o %q: want one of %s", o.text(), strings.Join(o.words, ", "))
	}
	return nil
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
