// Command sbom prints which modules a program was built of, as CycloneDX 1.5: sbom PROGRAM VERSION.
package main
