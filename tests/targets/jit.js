// The commands of serve.h for node: work that is compiled at run time, with exceptions, worker threads, children, signals, faults of
// WebAssembly.
const { createHash } = require('crypto');
const { execFileSync } = require('child_process');
const { Worker } = require('worker_threads');
const lines = require('readline').createInterface({ input: process.stdin });

let signals = 0;
process.on('SIGUSR2', () => signals++);

const commands = {
    work(n) {
        let sum = 0;
        for (let i = 0; i < n; i++) {
            sum += createHash('sha256').update(`line ${i}`).digest()[0];
            sum += JSON.parse(JSON.stringify({ list: [i, i + 1], text: 's'.repeat(i % 50) })).text.length;
            try { null.field; } catch (error) { sum += error.message.length; }
        }
        return sum;
    },
    async workers(n) {
        const source = 'let sum = 0; for (let i = 0; i < 1e5; i++) sum += i % 7; require("worker_threads").parentPort.postMessage(sum)';
        const one = () => new Promise((done) => new Worker(source, { eval: true }).on('message', done));
        return (await Promise.all(Array.from({ length: n }, one))).reduce((a, b) => a + b);
    },
    // A load beyond the memory: V8 makes an exception of the fault.
    faults(n) {
        const module = new WebAssembly.Module(Buffer.from('0061736d0100000001060160017f017f0302010005030100010705010166' +
            '00000a0901070020002802000b', 'hex'));
        const load = new WebAssembly.Instance(module).exports.f;
        let caught = 0;
        for (let i = 0; i < n; i++)
            try { load(0x7fffff00); } catch { caught++; }
        return caught;
    },
    async signals(n) {
        signals = 0;
        for (let i = 1; i <= n; i++) {
            process.kill(process.pid, 'SIGUSR2');
            while (signals < i) await new Promise(setImmediate);
        }
        return signals;
    },
    children(n) {
        let length = 0;
        for (let i = 0; i < n; i++) length += execFileSync('/bin/echo', ['text']).length;
        return length;
    },
};

(async () => {
    const [command, count] = process.argv.slice(2);
    if (command) {
        console.log(await commands[command](Number(count)));
        process.exit();
    }
    console.log('ready');
    for await (const line of lines) {
        const [name, n] = line.split(' ');
        console.log(await commands[name](Number(n)));
    }
})();
